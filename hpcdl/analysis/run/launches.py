"""Launches: one case of one launch each, reduced over its ranks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from statistics import median
from typing import Final, NamedTuple

import numpy as np

from hpcdl.analysis.run.disturbance import Disturbance, disturbance
from hpcdl.analysis.run.record import Record
from hpcdl.analysis.statistics.differences import Vector
from hpcdl.analysis.statistics.estimates import Middle, center
from hpcdl.trace.files import JsonObject
from hpcdl.trace.recorder import Rows
from hpcdl.trace.run import READ, RecordedCase, Run
from hpcdl.training.parts.traits import BY_STRATEGY

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

    @cached_property
    def staleness(self) -> Staleness | None:
        """Staleness of its updates; None without updates."""
        return _staleness(self)

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
    def images_per_second(self) -> float:
        """Images per second over the measured steps, pauses included; NaN without steps."""
        images = self.measured["images"].sum() or len(self.seconds) * (self.record.batch or np.nan)
        return float(images / self.seconds.sum()) if self.seconds.any() else float("nan")


def undisturbed(launches: Sequence[Launch]) -> list[Launch]:
    """Return the launches whose times are fair; all if all are disturbed."""
    return [launch for launch in launches if not launch.disturbed] or list(launches)


STATED: Final = ("waiting_seconds", "transfer_seconds", "late_rank", "late_seconds")
"""Columns of a launch that records without events state."""


def launches(run: Run) -> list[Launch]:
    """Return each launch of each case of a run, in its order."""
    launches = []
    for case in run.recorded:
        record = Record.of(case.fields)
        if record.error or not len(case.steps):
            launches.append(Launch(record, replace(case, **{name: getattr(case, name)[:0] for name in READ})))
        else:
            if record.compression_ratio and record.ring_bytes is None:
                record.compression_ratio = _ratio_to_ring(record, case.steps)
            stated = {name: getattr(record, name) for name in STATED}
            launches.append(Launch(record, case, **stated))
    return launches


def _ratio_to_ring(record: Record, steps: Rows) -> float | None:
    """Return the compression ratio of an older record, which has that to dense exchanges of the same strategy.

    None if it does not tell: steps have the bytes of strategies without sums, but not of servers without steps.
    """
    if record.period is None:
        return None
    if record.aggregation != BY_STRATEGY:
        return (record.compression_ratio or 0.0) * record.period
    later = steps[steps["step"] >= record.spec.plan.settings.warmup_steps]
    gradient = (record.parameters or 0) * np.dtype(record.dtype).itemsize
    ring = 2 * (record.ranks - 1) * gradient * float(later["images"].sum()) / (record.batch or 1.0)
    sent, complete = float(later["bytes"].sum()), len(np.unique(steps["rank"])) == record.ranks
    return ring / sent if ring and sent and complete else None


MAX_AGE: Final = 10_000
"""Staleness from which on gradients count together: a share is stored for each number below it."""


@dataclass(frozen=True)
class Staleness:
    """Of the gradients that were applied within the measured span; the largest is of the whole training."""

    mean: float
    largest: int
    shares: tuple[float, ...]
    """Of the gradients, at staleness 0, 1, 2, ..."""
    workers: int
    """Ranks whose gradients were applied."""
    collect: float | None
    """Gradients to an update, the mean; None where no server collects them."""
    expected: float | None
    """Expected mean staleness, (workers x in flight - 1) / collect; None where workers wait for others."""


def _staleness(launch: Launch) -> Staleness | None:
    updates, span = launch.case.updates, launch.throughput
    inside = updates[(updates["time"] >= span.begin) & (updates["time"] <= span.end)] if span else updates
    if not len(inside):
        return None
    versions = inside["version"] - inside["version"].min()
    # one number for both: numpy sorts rows of two columns slowly
    updates_made = np.unique(inside["rank"].astype(np.int64) * (versions.max() + 1) + versions)
    collect = len(inside) / len(updates_made)
    workers = len(np.unique(inside["worker"]))
    in_flight = launch.record.gradients_in_flight
    return Staleness(
        mean=float(inside["staleness"].mean()),
        largest=int(updates["staleness"].max()),
        shares=tuple((np.bincount(inside["staleness"].clip(0, MAX_AGE)) / len(inside)).tolist()),
        workers=workers,
        collect=collect if launch.record.served else None,
        expected=(workers * in_flight - 1) / collect if in_flight else None,
    )


AT_END: Final = {
    "final_loss": "loss",
    "final_accuracy": "accuracy",
    "consensus_distance": "consensus",
    **{name: name for name in ("residual_norm", "gradient_cosine", "gradient_error")},
}
"""Columns of the last evaluation by column of the record."""
AT_TARGET: Final = {
    "seconds_to_target": "training_seconds",
    "samples_to_target": "samples",
    "epochs_to_target": "epoch",
}
"""Columns of the first evaluation at the target by column of the record."""


def outcome(launches: Sequence[Launch]) -> JsonObject:
    """Return the columns of a record about accuracy, memory, staleness and compression; None if unknown.

    A target that one launch missed has no median time. If one launch diverged there are neither losses nor
    accuracies, but the step and the rank at which a loss or parameter was first not finite.
    """
    diverged = min((launch.diverged for launch in launches if launch.diverged), default=None)
    staleness_of = [launch.staleness for launch in launches if launch.staleness]
    numbers = [_numbers(launch) for launch in launches]
    columns: JsonObject = {
        name: median_of(each.get(name) for each in numbers) for name in dict.fromkeys(chain.from_iterable(numbers))
    }
    if any(each["seconds_to_target"] == np.inf for each in numbers):
        columns |= dict.fromkeys(AT_TARGET)
    elif columns["samples_to_target"] is not None:
        columns["samples_to_target"] = int(columns["samples_to_target"])
    if diverged:
        columns |= dict.fromkeys(("final_loss", "final_accuracy", "best_accuracy"))
    return {
        **columns,
        **dict(zip(("diverged_step", "diverged_rank"), diverged or (None, None), strict=True)),
        "memory_bytes_per_rank": max(launch.memory_bytes for launch in launches) or None,
        "staleness_mean": median_of(stale.mean for stale in staleness_of),
        "staleness_max": max((stale.largest for stale in staleness_of), default=None),
        "staleness_expected": median_of(stale.expected for stale in staleness_of),
        "workers": max((stale.workers for stale in staleness_of), default=None),
        "gradients_per_update": median_of(stale.collect for stale in staleness_of),
    }


def _numbers(launch: Launch) -> dict[str, float]:
    """Return the columns of a record that are medians over launches; not finite where unknown."""
    tests, tested = launch.evaluations, {"loss": launch.record.test_loss, "accuracy": launch.record.test_accuracy}
    numbers = {name: at_target(launch, column) for name, column in AT_TARGET.items()}
    numbers["samples_before_target"] = before_target(launch, "samples")
    if len(tests):
        last = tests[np.argmax(tests["step"])]
        for name, column in AT_END.items():
            value = tested.get(column)
            numbers[name] = float(last[column]) if value is None else value
        numbers["best_accuracy"] = float(tests["accuracy"].max())
        sent = (launch.record.sent_bytes or math.nan) / launch.record.ranks
        numbers["bytes_to_target"] = sent * numbers["samples_to_target"] / float(tests["samples"].max())
        numbers["residual_norm_largest"] = float(tests["residual_norm"].max())
    elif launch.last_loss is not None:
        numbers["final_loss"] = launch.last_loss
    return numbers


def at_target(launch: Launch, column: str) -> float:
    """Return a column of the first evaluation at or above the target; infinite if none, or training diverged."""
    seen, target = launch.evaluations, launch.record.target_accuracy
    if target is None or launch.diverged:
        return np.inf
    hits = seen[seen["accuracy"] >= target]
    return float(hits[column][np.argmin(hits["step"])]) if len(hits) else np.inf


def before_target(launch: Launch, column: str) -> float:
    """Return a column of the last evaluation before the target was reached, of the last one if it was not."""
    seen = launch.evaluations
    return float(seen[column][seen["step"] < at_target(launch, "step")].max(initial=0))


def median_of(values: Iterable[float | None]) -> float | None:
    """Return the median of the finite values; None without such."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return float(median(finite)) if finite else None  # numpy's takes longer for few numbers
