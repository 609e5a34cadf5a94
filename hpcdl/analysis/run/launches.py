"""Launches: one case of one launch each, reduced over its ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from hpcdl.analysis.run.disturbance import Disturbance, disturbance
from hpcdl.analysis.run.record import Record
from hpcdl.analysis.statistics.estimates import Middle, Vector, center
from hpcdl.trace.recorder import Rows
from hpcdl.trace.run import READ, RecordedCase, Run

WINDOWS: Final = 20
"""At most; Schmeiser (Operations Research 30, 1982): 10 to 30 are enough. Each has at least a global batch."""


MEASURED: Final = np.dtype(
    [
        ("seconds", np.float64),  # of the slowest rank; of a window, of all ranks together
        ("compute_seconds", np.float64),  # of the rank that computes longest; 0: not measured
        ("mean_compute_seconds", np.float64),  # over ranks, which perfect balance would give
        ("input_seconds", np.float64),  # of the rank that waits longest for its images; 0: not measured
        ("bytes_sent", np.float64),  # by the rank that sends most
        ("messages", np.float64),  # of the rank that sends most of them
        ("images", np.float64),  # all ranks together
    ]
)
"""Columns of a measured step, over its ranks."""


def _table(*columns: Rows | float) -> Rows:
    """Return rows of :data:`MEASURED`: as many as the first column has values."""
    table = np.empty(np.size(columns[0]), MEASURED)
    for name, values in zip(MEASURED.names or (), columns, strict=True):
        table[name] = values
    return table


class Throughput(NamedTuple):
    """Throughput of ranks that keep no common step, over a time span."""

    begin: int
    """Of the span, ns on rank 0's clock."""
    end: int
    batches: float
    """Global batches consumed within it."""
    windows: Rows
    """Rows of :data:`MEASURED`, per global batch; all have equally many images."""

    @property
    def seconds(self) -> Vector:
        """Seconds per global batch in each window."""
        return np.asarray(self.windows["seconds"], np.float64)


def throughput_of(
    steps: Rows | Mapping[str, Rows], warmup: int, batch: float, *, meets: bool = False
) -> Throughput | None:
    """Return the throughput of a case with global batches of ``batch`` images; None if nothing was measured.

    ``steps`` holds the columns of :attr:`hpcdl.trace.run.Run.steps`, rows in any order. ``meets``: all ranks
    sum now and then. A step then ends when the last rank has taken it; waiting time is no part of a rank's pace.
    """
    begin, end, images = steps["begin"], np.maximum(steps["end"], steps["begin"] + 1), steps["images"]
    ranks, worker = np.unique(steps["rank"], return_inverse=True)
    warm = [begin[(worker == rank) & (steps["step"] >= warmup)] for rank in range(len(ranks))]
    if not all(map(len, warm)):
        return None
    lasts = [int(end[worker == rank].max()) for rank in range(len(ranks))]
    _, numbers, taken = np.unique(steps["step"], return_inverse=True, return_counts=True)
    meets = meets and bool((taken == len(ranks)).all())
    # From the moment when all are warm to the end of the first worker that ends: only then do all work. Ranks that
    # meet end together.
    first, last = max(int(step.min()) for step in warm), max(lasts) if meets else min(lasts)
    if meets:
        inside = np.where(steps["step"] >= warmup, 1.0, 0.0)
    else:
        inside = np.clip(np.minimum(end, last) - np.maximum(begin, first), 0, None) / (end - begin)
    batches = float((images * inside).sum()) / batch
    if batches < 1:
        return None
    count = min(WINDOWS, int(batches))
    moments = np.unique(np.concatenate([begin, end, [first, last]]).clip(first, last))
    lengths = np.diff(moments)
    busy = np.where(heights(moments, begin, end, np.ones(len(begin))) > 0.5, lengths, 0.0)
    used = heights(moments, begin, end, images / (end - begin)) * lengths
    busy, consumed = (np.concatenate([[0.0], np.cumsum(values)]) for values in (busy, used))
    if meets:
        over = np.full(len(taken), first)
        np.maximum.at(over, numbers, end)
        consumed = np.concatenate([[0.0], np.cumsum(np.bincount(numbers, images * inside))])
        busy = np.concatenate([[0.0], busy[np.searchsorted(moments, np.maximum.accumulate(over))]])
    # Windows have equally many images; their lengths are the sample of times.
    edges = np.interp(np.linspace(0, consumed[-1], count + 1), consumed, busy / 1e9)

    def per_worker(column: str) -> Vector:
        return np.asarray(np.bincount(worker, steps[column] * inside, len(ranks)) / batches, np.float64)

    compute = per_worker("compute_ns") / 1e9
    windows = _table(
        np.diff(edges) * count / batches,
        compute.max(),
        compute.mean(),
        per_worker("input_ns").max() / 1e9,
        per_worker("bytes").max(),
        per_worker("messages").max(),
        batch,
    )
    return Throughput(first, last, batches, windows)


def heights(moments: Rows, begin: Rows, end: Rows, height: Vector) -> Vector:
    """Return the sum of the heights of the intervals that cover the time between each two of ``moments``."""
    last = len(moments) - 1
    change = np.zeros(len(moments))
    np.add.at(change, np.searchsorted(moments, begin).clip(0, last), height)
    np.add.at(change, np.searchsorted(moments, end).clip(0, last), -height)
    return np.asarray(np.cumsum(change)[:-1], np.float64)


@dataclass(frozen=True, eq=False)
class Launch:
    """One launch of a case; each reduction over its ranks is made at its first use."""

    record: Record
    case: RecordedCase
    """Without rows if it failed: what broke half-way has no step time."""
    waiting_seconds: float | None = None
    """Waiting for other ranks, mean over ranks and steps; None: not traced."""
    transfer_seconds: float | None = None
    """Time in which a rank moves bytes, mean over ranks and steps."""
    late_rank: int | None = None
    late_seconds: float | None = None
    """Longest waiting of another rank for it in a step, mean over steps."""

    @property
    def is_windowed(self) -> bool:
        """True if ranks keep no common step: rows of :attr:`measured` are windows, per global batch."""
        return not self.record.keeps_step and bool(self.record.batch)

    @property
    def middle(self) -> Middle:
        """Statistic of the measured steps or windows."""
        return "mean" if self.is_windowed else "median"

    @cached_property
    def throughput(self) -> Throughput | None:
        """Throughput if ranks keep no common step; None without steps, or if nothing was measured."""
        if not (self.is_windowed and len(self.case.steps)):
            return None
        meets = self.record.aggregation != "own"
        return throughput_of(self.case.steps, self.record.warmup_steps, self.record.batch or 0.0, meets=meets)

    @cached_property
    def measured(self) -> Rows:
        """Measured steps, ascending, without warm-up, or windows: rows of :data:`MEASURED`."""
        if self.is_windowed:
            return self.throughput.windows if self.throughput else np.empty(0, MEASURED)
        steps = self.case.steps[self.case.steps["step"] >= self.record.warmup_steps]
        # First the slowest rank of each step, then medians over steps: a mean over ranks would hide a straggler.
        _, index, count = np.unique(steps["step"], return_inverse=True, return_counts=True)

        def most(values: Rows) -> Vector:
            maxima = np.full(len(count), -np.inf)
            np.maximum.at(maxima, index, values)
            return maxima

        computed = steps["compute_ns"] / 1e9
        return _table(
            most((steps["end"] - steps["begin"]) / 1e9),
            most(computed),
            np.bincount(index, computed, len(count)) / count,
            most(steps["input_ns"] / 1e9),
            most(steps["bytes"]),
            most(steps["messages"]),
            np.bincount(index, steps["images"], len(count)),
        )

    @property
    def seconds(self) -> Vector:
        """Times of the measured steps or windows."""
        return self.measured["seconds"]

    @property
    def measured_steps(self) -> int:
        """Steps, or global batches, within the measured time."""
        return int(self.throughput.batches) if self.throughput else len(self.measured)

    @property
    def total_steps(self) -> int:
        """Steps, or global batches, with warm-up."""
        if self.is_windowed:
            return round(float(self.case.steps["images"].sum()) / (self.record.batch or 1.0))
        return len(np.unique(self.case.steps["step"]))

    @property
    def ranks_recorded(self) -> int:
        """Ranks that recorded steps, evaluations or updates."""
        tables = (self.case.steps, self.case.evaluations, self.case.updates)
        return len(np.unique(np.concatenate([table["rank"] for table in tables])))

    @cached_property
    def disturbance(self) -> Disturbance:
        """Time that was taken from its ranks; none of a simulated case."""
        return Disturbance() if self.record.network else disturbance(self.case.ranks)

    @property
    def disturbed(self) -> str | None:
        """Disturbance from outside the job beyond the limits of :mod:`hpcdl.analysis.run.disturbance`."""
        return self.disturbance.cause

    @property
    def memory_bytes(self) -> int:
        """Vectors of the rank that holds most; 0 where it was not stated."""
        return int(self.case.ranks["memory_bytes"].max(initial=0))

    @property
    def last_loss(self) -> float | None:
        """Mean over the images of the last step."""
        steps = self.case.steps[self.case.steps["images"] > 0]
        last = steps[steps["step"] == self.case.steps["step"].max(initial=0)]
        return float(np.average(last["loss"], weights=last["images"])) if len(last) else None

    @cached_property
    def diverged(self) -> tuple[int, int] | None:
        """Step and rank of the first loss that is not finite, also of the test after so many steps.

        None if the last test is finite: a line search or the scaling of float16 rejected such a gradient.
        """
        steps, tests = self.case.steps, self.case.evaluations
        if self.record.kind == "replay" or (len(tests) and np.isfinite(tests["loss"][np.argmax(tests["step"])])):
            return None
        infinite = [
            table[["step", "rank"]][~np.isfinite(table["loss"])] for table in (steps[steps["images"] > 0], tests)
        ]
        return min(np.concatenate(infinite).tolist(), default=None)

    @cached_property
    def evaluations(self) -> Rows:
        """Evaluations of the lowest rank that has any, each at the time of the rank that reached it last."""
        rows = self.case.evaluations
        by_rank: list[Rows] = [rows[rows["rank"] == rank] for rank in np.unique(rows["rank"])]
        first, *others = by_rank or [rows]
        for other in others:
            shared = min(len(first), len(other))
            times = first["training_seconds"][:shared]
            np.maximum(times, other["training_seconds"][:shared], out=times)
        return first

    def typical(self, vector: Vector) -> float:
        """Return the middle of a column of :attr:`measured`."""
        return center(vector, self.middle)

    @property
    def seconds_per_image(self) -> Vector:
        """Of each step; of the global batch where no images are counted, NaN if it is unknown."""
        images = self.measured["images"]
        return self.seconds / (images if images.any() else self.record.batch or np.nan)

    @property
    def images_per_second(self) -> float:
        """Images per second over the measured steps, pauses included; NaN without steps."""
        images = self.measured["images"].sum() or len(self.seconds) * (self.record.batch or np.nan)
        return float(images / self.seconds.sum()) if self.seconds.any() else float("nan")


def undisturbed(launches: Sequence[Launch]) -> list[Launch]:
    """Return the launches whose times are fair; all if all are disturbed."""
    return [launch for launch in launches if not launch.disturbed] or list(launches)


def launches(run: Run) -> list[Launch]:
    """Return each launch of each case of a run, in its order."""
    launches = []
    for case in run.recorded:
        record = Record.of(case.fields)
        if record.error or not len(case.steps):
            launches.append(Launch(record, replace(case, **{name: getattr(case, name)[:0] for name in READ})))
        else:
            launches.append(Launch(record, case, late_rank=record.late_rank, late_seconds=record.late_seconds))
    return launches
