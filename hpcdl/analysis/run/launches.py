"""Launches: one case of one launch each, reduced over its ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from hpcdl.analysis.run.disturbance import disturbance
from hpcdl.analysis.run.record import Record
from hpcdl.analysis.statistics.estimates import Middle, Vector, center, slowest
from hpcdl.trace.files import JsonObject
from hpcdl.trace.recorder import Rows
from hpcdl.trace.run import READ, Run, Table, by_case

WINDOWS: Final = 20
"""At most; Schmeiser (Operations Research 30, 1982): 10 to 30 are enough. Each has at least a global batch."""


class Throughput(NamedTuple):
    """Throughput over a time span. Vectors per worker are in the order of the ranks."""

    begin: int
    """Of the span, ns on rank 0's clock."""
    end: int
    batches: float
    """Global batches consumed within it."""
    seconds: Vector
    """Per window: seconds per global batch."""
    compute: Vector
    """Per worker: seconds of local work while all together consume a global batch."""
    input: Vector
    """Per worker: seconds of waiting for images, likewise."""
    messages: Vector
    """Per worker: messages sent, likewise."""
    bytes: Vector
    """Per worker: bytes sent, likewise."""


def throughput_of(steps: Table, warmup: int, batch: float) -> Throughput | None:
    """Return the throughput of a case with global batches of ``batch`` images; None if nothing was measured.

    ``steps`` holds the columns of :attr:`hpcdl.trace.run.Run.steps`, rows in any order.
    """
    begin, end, images = steps["begin"], np.maximum(steps["end"], steps["begin"] + 1), steps["images"]
    ranks, worker = np.unique(steps["rank"], return_inverse=True)
    warm = [begin[(worker == rank) & (steps["step"] >= warmup)] for rank in range(len(ranks))]
    if not all(map(len, warm)):
        return None
    # From the moment when all are warm to the end of the first worker that ends: only then do all work.
    first = max(int(step.min()) for step in warm)
    last = min(int(end[worker == rank].max()) for rank in range(len(ranks)))
    inside = np.clip(np.minimum(end, last) - np.maximum(begin, first), 0, None) / (end - begin)
    batches = float((images * inside).sum()) / batch
    if batches < 1:
        return None
    windows = min(WINDOWS, int(batches))
    moments = np.unique(np.concatenate([begin, end, [first, last]]).clip(first, last))
    lengths = np.diff(moments)
    busy = np.where(_level(moments, begin, end, np.ones(len(begin))) > 0.5, lengths, 0.0)
    used = _level(moments, begin, end, images / (end - begin)) * lengths
    busy, consumed = (np.concatenate([[0.0], np.cumsum(values)]) for values in (busy, used))
    # Windows have equally many images; their lengths are the sample of times.
    edges = np.interp(np.linspace(0, consumed[-1], windows + 1), consumed, busy / 1e9)

    def per_worker(column: str) -> Vector:
        return np.asarray(np.bincount(worker, steps[column] * inside, len(ranks)) / batches, np.float64)

    return Throughput(
        first,
        last,
        batches,
        seconds=np.diff(edges) * windows / batches,
        compute=per_worker("compute_ns") / 1e9,
        input=per_worker("input_ns") / 1e9,
        messages=per_worker("messages"),
        bytes=per_worker("bytes"),
    )


def _level(moments: Vector, begin: Vector, end: Vector, height: Vector) -> Vector:
    """Between each two of the ascending ``moments`` the sum of the heights of the steps that are under way."""
    last = len(moments) - 1
    change = np.zeros(len(moments))
    np.add.at(change, np.searchsorted(moments, begin).clip(0, last), height)
    np.add.at(change, np.searchsorted(moments, end).clip(0, last), -height)
    return np.asarray(np.cumsum(change)[:-1], np.float64)


Columns = dict[str, Rows]


@dataclass(frozen=True)
class Launch:
    """Vectors hold one entry per measured step (warm-up is left out), in the order of the steps.

    If ranks keep no common step (:attr:`hpcdl.analysis.run.record.Record.keeps_step`) an entry is a window of
    :mod:`hpcdl.analysis.run.launches`, and all numbers are per global batch.
    """

    record: Record
    seconds: Vector
    """Seconds of the slowest rank; for windows those of all ranks together."""
    compute_seconds: Vector
    """Of the rank that computed longest; 0 where it was not measured."""
    mean_compute_seconds: Vector
    """Mean over ranks, what perfect balance would give."""
    input_seconds: Vector
    """Of the rank that waited longest for its images; 0 where it was not measured."""
    bytes_sent: Vector
    """By the rank that sent most."""
    messages: Vector
    """Of the rank that sent most of them."""
    images: Vector
    """All ranks together."""
    total_steps: int
    warmup_steps: int
    ranks_recorded: int
    measured_steps: int = 0
    last_loss: float | None = None
    """Mean over the images of the last step."""
    diverged: tuple[int, int] | None = None
    """Step and rank whose loss, or parameters at a test, were first not finite; None: none, or it recovered."""
    evaluations: Columns = field(default_factory=dict)
    """Evaluations of the lowest rank that has any, each at the time of the rank that reached it last."""
    workers: int = 0
    """Ranks that take steps."""
    updates: Columns = field(default_factory=dict)
    """Gradients applied to parameters that were kept for others."""
    residuals: Columns = field(default_factory=dict)
    """Norms of residuals and of gradients by step, root mean squares over ranks; empty unless compressed."""
    memory_bytes: int = 0
    """Vectors of the rank that holds most; 0 where it was not stated."""
    disturbed: str | None = None
    """Disturbance from outside the job beyond the limits of :mod:`hpcdl.analysis.run.disturbance`."""
    stolen: float = 0.0
    """Share of its time that the hypervisor took from the rank that lost most."""
    middle: Middle = "median"
    """Statistic of ``seconds``."""
    span: tuple[int, int] | None = None
    """Measured time span if ranks keep no common step, ns on rank 0's clock."""

    waiting_seconds: float | None = None
    """Waiting for other ranks, mean over ranks and steps; None: not traced."""
    transfer_seconds: float | None = None
    """Time in which a rank moves bytes, mean over ranks and steps."""
    late_rank: int | None = None
    late_seconds: float | None = None
    """Longest waiting of another rank for it in a step, mean over steps."""

    def typical(self, vector: Vector) -> float:
        """The middle of one of the vectors."""
        return center(vector, self.middle)

    @property
    def seconds_per_image(self) -> Vector:
        """Of each entry; the global batch where no images are counted, NaN if it is unknown."""
        return self.seconds / (self.images if self.images.any() else self.record.batch or np.nan)

    @property
    def images_per_second(self) -> float:
        """Images per second over the measured steps, pauses included; NaN without steps."""
        images = self.images.sum() or len(self.seconds) * (self.record.batch or np.nan)
        return float(images / self.seconds.sum()) if self.seconds.any() else float("nan")


def undisturbed(launches: Sequence[Launch]) -> list[Launch]:
    """Return the launches whose times are fair; all if all are disturbed."""
    return [launch for launch in launches if not launch.disturbed] or list(launches)


def launches(run: Run) -> list[Launch]:
    """All cases of a run, in its order, each reduced over ranks."""
    tables = {name: by_case(getattr(run, name)) for name in READ}
    return [
        _reduce(Record.of(fields), **{name: table.get(index, {}) for name, table in tables.items()})
        for index, fields in enumerate(run.described)
    ]


def _reduce(
    record: Record,
    steps: Columns,
    evaluations: Columns,
    updates: Columns,
    residuals: Columns,
    ranks: Columns,
) -> Launch:
    warmup = record.warmup_steps
    if not steps or record.error:  # what broke half-way has no step time
        return _unmeasured(record, total_steps=0, warmup_steps=warmup, ranks_recorded=0)
    taken = disturbance({} if record.network else ranks)
    recorded = [table["rank"] for table in (steps, evaluations, updates) if table]
    counts: JsonObject = {
        "warmup_steps": warmup,
        "ranks_recorded": len(np.unique(np.concatenate(recorded))),
        "last_loss": _last_loss(steps),
        "diverged": None if record.kind == "replay" else _diverged(steps, evaluations),
        "evaluations": _latest(evaluations),
        "workers": len(np.unique(steps["rank"])),
        "late_rank": record.late_rank,
        "late_seconds": record.late_seconds,
        "updates": updates,
        "residuals": _over_ranks(residuals),
        "memory_bytes": int(ranks["memory_bytes"].max(initial=0)) if ranks else 0,
        "stolen": taken.stolen,
        "disturbed": taken.cause,
    }
    whole = record.batch
    if not record.keeps_step and whole:
        total = round(float(steps["images"].sum()) / whole)
        return _windowed(
            record, throughput_of(steps, warmup, whole), whole, total_steps=total, middle="mean", **counts
        )
    measured = {name: column[steps["step"] >= warmup] for name, column in steps.items()}
    number = measured["step"]
    # First the slowest rank of each step, then medians over steps: a mean over ranks would hide a straggler.
    _, seconds = slowest(number, (measured["end"] - measured["begin"]) / 1e9)
    _, place, count = np.unique(number, return_inverse=True, return_counts=True)
    computed = measured["compute_ns"] / 1e9
    return Launch(
        record,
        seconds=seconds,
        compute_seconds=slowest(number, computed)[1],
        mean_compute_seconds=np.bincount(place, computed, len(count)) / count,
        input_seconds=slowest(number, measured["input_ns"] / 1e9)[1],
        bytes_sent=slowest(number, measured["bytes"])[1],
        messages=slowest(number, measured["messages"])[1],
        images=np.bincount(place, measured["images"], len(count)).astype(np.float64),
        total_steps=len(np.unique(steps["step"])),
        measured_steps=len(seconds),
        **counts,
    )


def _unmeasured(record: Record, **counts: Any) -> Launch:
    nothing = np.empty(0)
    return Launch(record, nothing, nothing, nothing, nothing, nothing, nothing, nothing, **counts)


def _windowed(record: Record, throughput: Throughput | None, whole: float, **counts: Any) -> Launch:
    if throughput is None:
        return _unmeasured(record, **counts)
    per_window = partial(np.full, len(throughput.seconds))
    return Launch(
        record,
        throughput.seconds,
        compute_seconds=per_window(throughput.compute.max()),
        mean_compute_seconds=per_window(throughput.compute.mean()),
        input_seconds=per_window(throughput.input.max()),
        bytes_sent=per_window(throughput.bytes.max()),
        messages=per_window(throughput.messages.max()),
        images=per_window(whole),
        measured_steps=int(throughput.batches),
        span=(throughput.begin, throughput.end),
        **counts,
    )


def _latest(evaluations: Columns) -> Columns:
    """Return the evaluations of the lowest rank, each at the time of the rank that reached it last."""
    if not evaluations:
        return {}
    by_rank = [np.flatnonzero(evaluations["rank"] == rank) for rank in np.unique(evaluations["rank"])]
    times = evaluations["training_seconds"].copy()
    for rows in by_rank[1:]:
        shared = min(len(rows), len(by_rank[0]))
        own, others = by_rank[0][:shared], rows[:shared]
        times[own] = np.maximum(times[own], times[others])
    return {
        name: (times if name == "training_seconds" else column)[by_rank[0]] for name, column in evaluations.items()
    }


def _over_ranks(residuals: Columns) -> Columns:
    """Return the root mean square of each norm over the ranks that recorded a step."""
    if not residuals:
        return {}
    steps, place, count = np.unique(residuals["step"], return_inverse=True, return_counts=True)
    norms = ("residual_norm", "gradient_norm")
    return {
        "step": steps,
        **{name: np.sqrt(np.bincount(place, residuals[name] ** 2, len(count)) / count) for name in norms},
    }


def _diverged(steps: Columns, evaluations: Columns) -> tuple[int, int] | None:
    """Return step and rank of the first loss that is not finite, also of the test after so many steps.

    None if the last test is finite: a line search or the scaling of float16 rejected such a gradient.
    """
    if evaluations and np.isfinite(evaluations["loss"][np.argmax(evaluations["step"])]):
        return None
    places = [
        np.stack([table["step"], table["rank"]], 1)[~np.isfinite(table["loss"]) & (table.get("images", 1) > 0)]
        for table in filter(None, (steps, evaluations))
    ]
    return min(((int(step), int(rank)) for step, rank in np.concatenate(places)), default=None)


def _last_loss(steps: Columns) -> float | None:
    last = (steps["step"] == steps["step"].max()) & (steps["images"] > 0)
    if not last.any():
        return None
    return float(np.average(steps["loss"][last], weights=steps["images"][last]))
