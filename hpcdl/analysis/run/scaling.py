"""From launches to the records of ``--json``: one per case and seed, launches taken together.

Definitions. A step takes as long as its slowest rank; ``step_seconds`` is the median over measured steps.
If ranks keep no common step it is the mean time in which all ranks together consume a global batch (see
:mod:`hpcdl.analysis.run.launches`).
With T the step time at p ranks and T0 that at the base's p0 ranks: strong scaling (the global batch stays)
has speedup T0/T and efficiency p0 T0 / (p T); weak scaling (the batch per rank stays) has speedup
p T0 / (p0 T) and efficiency T0/T. The base are the one-rank cases of the same problem, taken together as
launches: one rank exchanges nothing, so that every aggregation is the same program there. Of several kinds those
of the same compression are taken, else those without, else those of any one; of these those of the same
optimizer, else those of any one; of these those of the same strategy, else of one in lock-step, else those of
any one. Without one-rank cases the base is the same case at its smallest scale. What belongs to the base has
speedup and efficiency 1 by definition. Exposed communication is the step time less that of the case that does not
communicate (aggregation "none") on as many ranks, chosen alike by strategy and optimizer; both must keep common
steps, or neither; on one rank it is 0 by definition, and it is never below 0. Times are those of undisturbed
launches; of all where all are disturbed (:mod:`hpcdl.analysis.run.disturbance`). Input is the part of the compute
time that goes into waiting for images, of the rank that waits longest. Sent bytes and messages are per step, of
the rank that sends most, of those that take steps.
Load balance and communication efficiency are those of the POP project (Rosas, Gimenez & Labarta, Scalability
prediction for fundamental performance factors, 2014).

Near-linear is a test of each efficiency against 0.90 (:mod:`hpcdl.analysis.statistics.judging`): the unit is the
launch, of a simulated case also a step, which draws its own random times. All cases are judged together.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any, Final

import numpy as np

from hpcdl.analysis.run.launches import Launch, median_of, outcome, undisturbed
from hpcdl.analysis.run.pooling import Point, points_of
from hpcdl.analysis.run.record import ANY, Key, Record, group_by_key
from hpcdl.analysis.statistics.differences import Vector
from hpcdl.analysis.statistics.estimates import (
    NOTHING,
    Interval,
    launches_interval,
    mean_interval,
    median_interval,
)
from hpcdl.analysis.statistics.judging import Side, compare, judge
from hpcdl.trace.files import JsonObject
from hpcdl.trace.quantities import EXCHANGES, QUANTITIES
from hpcdl.trace.quantity import Quantity
from hpcdl.trace.recorder import Rows


def base_of(point: Point, points: Sequence[Point]) -> list[Point]:
    """Return the measured cases of all seeds that are the base of ``point``: of one scale and one program."""
    measured = [other for other in points if other.problem == point.problem and other.times]
    single = [other for other in measured if other.record.ranks == 1]
    for name in ("compression", "optimizer", "training"):
        single = _nearest(single, point, name)
    if single:
        return single
    scales = [other for other in measured if other.configuration == point.configuration]
    fewest = min((other.record.ranks for other in scales), default=0)
    return [other for other in scales if other.record.ranks == fewest]


def without_communication(point: Point, points: Sequence[Point]) -> list[Point]:
    """Return the cases of the same problem and scale whose ranks do not communicate, of one program."""
    alike = [
        other
        for other in points
        if other.record.independent
        and (other.problem, other.record.ranks) == (point.problem, point.record.ranks)
        and other.middle == point.middle
    ]
    return _nearest(_nearest(alike, point, "training"), point, "optimizer")


def _nearest(points: Sequence[Point], to: Point, name: str) -> list[Point]:
    """Return the points whose field ``name`` is that of ``to``, else that of the usual one, else of any one.

    Usual are no compression, and a strategy in lock-step.
    """
    values = [point.record.stated(name) or "none" for point in points]
    in_step = [value for point, value in zip(points, values, strict=True) if point.record.keeps_step]
    usual = {"compression": ["none"], "training": in_step}.get(name, [])
    wanted = to.record.stated(name) or "none"
    chosen = next((value for value in (wanted, *usual, *values) if value in values), None)
    return [point for point, value in zip(points, values, strict=True) if value == chosen]


def same_seed(points: Sequence[Point], seed: object) -> list[Launch]:
    """Return the launches whose times count, of ``seed`` if it is there, else of every seed."""
    same = [point for point in points if point.record.seed == seed] or points
    return undisturbed([launch for point in same for launch in point.launches if len(launch.seconds)])


def bus_factor(collective: str, ranks: int) -> float | None:
    """Return the factor from algorithm bandwidth S/t to the bandwidth of the busiest link.

    S is the whole array: that of a rank after an allgather, before a reduce-scatter or an all-to-all.
    allreduce 2(p-1)/p; reduce_scatter, allgather, all_to_all (p-1)/p; broadcast, reduce, pairwise exchange 1.
    None for a collective that has no such factor, such as an alltoallv. ``ranks`` >= 1.
    """
    share = (ranks - 1) / ranks
    factors = {
        "allreduce": 2 * share,
        **dict.fromkeys(("reduce_scatter", "allgather", "all_to_all"), share),
        **dict.fromkeys(("broadcast", "reduce", "exchange", "pairwise"), 1.0),
    }
    return factors.get(collective)


NEAR_LINEAR: Final = 0.90
"""Least efficiency that is near-linear."""


def records(launches: Iterable[Launch]) -> list[Record]:
    """One record per case and seed, in the order in which they ran. Raises AmbiguousCaseError."""
    launches = list(launches)
    by_launch = group_by_key((launch.record.launch, launch) for launch in launches)
    rows = _records(points_of(launches))
    if len(by_launch) > 1:
        samples = {number: _records(points_of(some)) for number, some in by_launch.items()}
        of_case = group_by_key(
            (key, (number, row)) for number, some in samples.items() for key, row in some.items()
        )
        for key, row in rows.items():
            row.samples = dict(of_case[key])
    return [*rows.values()]


def _records(points: Sequence[Point]) -> dict[Key, Record]:
    """Return the record of each point, by its key, with its efficiency, and whether that is near-linear."""
    rows = {point.key: _record(point, points) for point in points}
    families = dict[Key, tuple[list[Launch], list[Point]]]()
    for point in points:
        if base := _base(point, points):
            row, of_base = rows[point.key], any(launch in base for launch in point.launches)
            row.values.update(_scaling(point, base))
            if of_base or row.independent or row.ranks == row.base_ranks:
                size = Interval(1.0, 1.0, 1.0) if of_base else compare(_side(base), _of(point, base)).interval()
                row.values.update(_bounded(Record.efficiency, size._replace(value=row.efficiency or math.nan)))
            else:
                families.setdefault(tuple(map(id, base)), (base, []))[1].append(point)
    sides = [[_side(base), *(_of(point, base) for point in some)] for base, some in families.values()]
    for (_, some), verdicts in zip(families.values(), judge(sides, limit=NEAR_LINEAR), strict=True):
        for point, verdict in zip(some, verdicts, strict=True):
            row = rows[point.key]
            row.values.update(
                _bounded(Record.efficiency, verdict.alone._replace(value=row.efficiency or math.nan))
            )
            row.near_linear = {"more": True, "equal": True, "less": False}.get(verdict.word)
            row.near_linear_p = None if row.network else _json(verdict.p)
    return rows


def _base(point: Point, points: Sequence[Point]) -> list[Launch]:
    """Return the launches of the base of speedup and efficiency; none if the case has no steps."""
    is_scaled = point.record.is_training and point.record.scaling in {"strong", "weak"}
    return same_seed(base_of(point, points), point.record.seed) if is_scaled and point.times else []


def _of(point: Point, base: Sequence[Launch]) -> Side:
    """Return the step times / the efficiency of a case as fast as its base."""
    alone = base[0].record.ranks / point.record.ranks if point.record.scaling == "strong" else 1.0
    side = _side(point.timed)
    return replace(side, values={unit: time / alone for unit, time in side.values.items()})


def _times(launches: Iterable[Launch]) -> dict[Hashable, float]:
    """Return the step time (s) of each launch, the median over its cases."""
    timed = [(launch.record.launch, launch.typical(launch.seconds)) for launch in launches if len(launch.seconds)]
    return {number: float(np.median(times)) for number, times in group_by_key(timed).items()}


def _side(launches: Sequence[Launch]) -> Side:
    """Return the step times by launch.

    Steps of one launch are not independent. Those of a simulation are, and it has one launch: steps are its units.
    """
    times = _times(launches)
    if len(times) == 1 and all(launch.record.network for launch in launches):
        every = [(launch.record.seed, launch.seconds.tolist()) for launch in launches]
        times = {(seed, step): time for seed, seconds in every for step, time in enumerate(seconds)}
    exact = all(launch.record.is_exact for launch in launches)
    return Side(times, exact=exact, disturbed=any(launch.disturbed for launch in launches))


def _bounded(quantity: Quantity[float | None], interval: Interval) -> JsonObject:
    """Return the columns of a quantity and of its bounds."""
    columns = (quantity, quantity.low, quantity.high)
    value, low, high = interval
    low, high = (value if math.isclose(bound, value, rel_tol=1e-12) else bound for bound in (low, high))
    numbers = value, min(low, value), max(high, value)  # those of medians may be beyond the interval of means
    return {column.name: _json(number) for column, number in zip(columns, numbers, strict=True) if column}


def _recorded(point: Point) -> Record:
    """Return the record of what the launches recorded; numbers are of those whose times count, outcomes of all."""
    names = dict.fromkeys(name for launch in point.launches for name in launch.record.values)
    further = dict.fromkeys(name for launch in point.launches for name in launch.record.further)
    values, others = dict[str, Any](), JsonObject()
    for quantity in map(QUANTITIES.__getitem__, names):
        of_times = quantity.reduction == "median" and not quantity.seeded
        counted = point.timed if of_times else point.launches
        values[quantity.name] = quantity.reduced([quantity.of(launch.record) for launch in counted])
    for name in further:
        known = [launch.record.further.get(name) for launch in point.launches]
        are_numbers = {type(value) for value in known} <= {int, float}
        others[name] = (NUMBER if are_numbers else WORD).reduced(known)
    return Record(further=others, **values)


NUMBER: Final = Quantity[Any]("number null", None, reduction="median")
WORD: Final = Quantity[Any]("string null", None)
"""Numbers and other fields of a user's own kind of case."""


TRACED: Final = ("bytes_sent_per_rank", "messages_per_rank", "ranks_recorded", "stolen", "measured_steps", "steps")
"""Columns that follow from a trace; a log of another tool states them, or they are unknown."""


def _record(point: Point, points: Sequence[Point]) -> Record:
    measured: JsonObject = {
        "draw": point.record.draw if len(point.launches) == 1 else None,
        "launches": len(point.timed),
        "launches_left_out": len(point.launches) - len(point.timed),
        "scaling": point.record.scaling if point.record.is_training else None,
        "steps": max(launch.total_steps for launch in point.launches) or None,
        "planned_steps": point.record.planned_steps if point.record.is_training else None,
        "measured_steps": sum(launch.measured_steps for launch in point.timed),
        "ranks_recorded": min(launch.ranks_recorded for launch in point.launches),
        "bytes_sent_per_rank": _middle(point, itemgetter("bytes_sent")),
        "messages_per_rank": _middle(point, itemgetter("messages")),
        "disturbed": next((launch.disturbed for launch in point.timed if launch.disturbed), None),
        "stolen": float(np.mean([launch.disturbance.stolen for launch in point.timed])),
        "busy_cores": median_of(launch.disturbance.busy_cores for launch in point.timed),
        "launch_seconds": point.times or None,
        "error": next((text for launch in point.launches if (text := launch.record.error)), None),
        **_waiting(point),
        **_health(point),
        **(_training(point, points) if point.record.is_training else _collective(point)),
    }
    several = len(point.launches) > 1  # columns of one launch do not hold for all
    columns = {name: _json(value) for name, value in measured.items() if several or value is not None}
    recorded = _recorded(point)
    columns |= {name: recorded.values.get(name) for name in TRACED if recorded.log}
    return recorded.but(launch=None, **columns)


def _waiting(point: Point) -> JsonObject:
    """Return the medians over launches; a late rank if it is the same in all of them, and they are undisturbed."""
    late = {None if launch.disturbed else launch.late_rank for launch in point.timed}
    medians = {
        name: median_of(getattr(launch, name) for launch in point.timed)
        for name in ("waiting_seconds", "transfer_seconds", "late_seconds")
    }
    late_rank = late.pop() if len(late) == 1 else None
    return {**medians, "late_rank": late_rank, **({"late_seconds": None} if late_rank is None else {})}


def _health(point: Point) -> JsonObject:
    """Return the troubles of nodes in the first launch that has any, and the energy for an image or a GB."""
    joules = [
        launch.record.energy_joules / work
        for launch in point.timed
        if launch.record.energy_joules is not None and (work := _work(launch))
    ]
    return {
        "joules_per_image" if point.record.is_training else "joules_per_gigabyte": median_of(joules),
        "throttled": next(filter(None, (launch.record.throttled for launch in point.timed)), None),
        "hardware_errors": next(filter(None, (launch.record.hardware_errors for launch in point.timed)), None),
    }


def _work(launch: Launch) -> float:
    """Return the images of all steps, or the GB of all repetitions of a collective."""
    record = launch.record
    if record.is_training:
        return float(launch.case.steps["images"].sum())
    size = record.message_bytes if record.kind == "collective" else None
    return launch.total_steps * (record.operations or 1) * (size or 0) / 1e9


def _training(point: Point, points: Sequence[Point]) -> JsonObject:
    step = _typical(point)
    step = Interval(step.value, math.nan, math.nan) if step.low < 0 else step
    compute = _middle(point, itemgetter("compute_seconds")) or None
    exposed, ceiling_disturbed = _exposed(point, points)
    shown = Interval(*(max(0.0, bound) if math.isfinite(bound) else bound for bound in exposed))
    return {
        **_bounded(Record.step_seconds, step),
        "images_per_second": median_of(launch.images_per_second for launch in point.timed),
        "compute_seconds": compute,
        "input_seconds": _middle(point, itemgetter("input_seconds")) or None,
        **_bounded(Record.exposed_communication_seconds, shown),
        "ceiling_disturbed": ceiling_disturbed,
        "load_balance": compute
        and _middle(point, lambda steps: _share(steps, "mean_compute_seconds", "compute_seconds")),
        "communication_efficiency": compute
        and _middle(point, lambda steps: _share(steps, "compute_seconds", "seconds")),
        "bubble_share": _middle(point, lambda steps: 1 - _share(steps, "mean_compute_seconds", "seconds"))
        if point.record.stages
        else None,
        **outcome(point.launches),
    }


def _exposed(point: Point, points: Sequence[Point]) -> tuple[Interval, bool | None]:
    """Return the exposed communication, and whether the case without communication was disturbed."""
    if not point.times:
        return NOTHING, None
    if point.record.ranks == 1 or point.record.independent:
        return Interval(0.0, 0.0, 0.0), None
    baseline = without_communication(point, points)
    if not baseline:
        return NOTHING, None
    others = same_seed(baseline, point.record.seed)
    exposed = compare(_side(point.timed), _side(others), quotient=False).interval()
    return exposed, any(launch.disturbed for launch in others)


def _typical(point: Point) -> Interval:
    """Return the typical time over launches; of a simulation in one launch, over its independent steps."""
    if point.record.network and len(point.times) == 1:
        (seconds,) = filter(len, point.seconds)
        return (mean_interval if point.middle == "mean" else median_interval)(seconds)
    return launches_interval(point.seconds, point.middle)


def _scaling(point: Point, base: Sequence[Launch]) -> JsonObject:
    """Return the columns of speedup, efficiency and their base."""
    times, base_times = ([*_times(side).values()] for side in (point.timed, base))
    scale, base_step = point.record.ranks / base[0].record.ranks, float(np.median(base_times))
    ratio = base_step / float(np.median(times))
    if any(launch in base for launch in point.launches):
        ratio = scale if point.record.scaling == "strong" else 1.0
    speedup = ratio if point.record.scaling == "strong" else ratio * scale
    aggregations = [*dict.fromkeys(launch.record.aggregation or "none" for launch in base)]
    return {
        "speedup": speedup,
        "efficiency": speedup / scale,
        "base_ranks": base[0].record.ranks,
        "base_aggregation": ANY if len(aggregations) > 1 else aggregations[0],
        "base_launches": len(base_times),
        "base_step_seconds": base_step,
        "base_disturbed": any(launch.disturbed for launch in base),
    }


def _collective(point: Point) -> JsonObject:
    """Times of one operation; bandwidths are those of its median."""
    times = _typical(point)
    is_one = point.record.pattern in {None, "pair", "alone", "together", *EXCHANGES}
    size = point.record.message_bytes if is_one else None
    name = str(point.record.collective or point.record.kind)
    bandwidth = size / times.value if size is not None and times.value > 0 else None
    factor, busiest = bus_factor(name, point.record.ranks), point.record.busiest_bytes
    if busiest is not None and size:
        factor = busiest / size
    # one time of a log is a mean, which has no quantiles
    measured = [vector for vector in point.seconds if len(vector) > bool(point.record.log)]
    return {
        **_bounded(Record.time_p50_seconds, times),
        "time_p95_seconds": median_of(np.quantile(vector, 0.95) for vector in measured),
        "time_p99_seconds": median_of(np.quantile(vector, 0.99) for vector in measured),
        "time_max_seconds": max((float(vector.max()) for vector in measured), default=None),
        "flop_per_second": point.record.work_flop and point.record.work_flop / (times.value or math.nan),
        "algbw_bytes_per_second": bandwidth,
        "busbw_bytes_per_second": None if bandwidth is None or factor is None else bandwidth * factor,
    }


def _middle(point: Point, of: Callable[[Rows], Vector]) -> float | None:
    """Median over launches of the median over measured steps, or of the mean over windows, of ``of`` them."""
    vectors = [(launch, of(launch.measured)) for launch in point.timed]
    return median_of(launch.typical(vector) for launch, vector in vectors if len(vector))


def _share(steps: Rows, part: str, whole: str) -> Vector:
    steps = steps[steps[whole] > 0]
    return np.asarray(steps[part] / steps[whole], np.float64)


def _json(value: object) -> Any:
    """Return a plain Python value, and None for a number that is not finite: JSON has no NaN."""
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
