"""From a run's frames to the records of ``--json``: one per case and seed, launches taken together.

Definitions. A step takes as long as its slowest rank; ``step_seconds`` is the median over measured steps.
Where ranks keep no common step it is the mean time in which all ranks together consume a global batch (see
:mod:`hpcdl.analysis.pace`).
With T the step time at p ranks and T0 that at the base's p0 ranks: strong scaling (the global batch stays)
has speedup T0/T and efficiency p0 T0 / (p T); weak scaling (the batch per rank stays) has speedup
p T0 / (p0 T) and efficiency T0/T. The base are the one-rank cases of the same problem, taken together as
launches: one rank exchanges nothing, so that every aggregation is the same program there. Of several kinds those
of the same compression are taken, else those without, else those of any one; of these those of the same
optimizer, else those of any one; of these those of the same strategy, else the synchronous ones, else those of
any one. Without one-rank cases the base is the same case at its smallest scale. What belongs to the base has
speedup and efficiency 1 by definition. Exposed communication is the step time less that of the case that does not
communicate (aggregation "none") on as many ranks, chosen alike by strategy and optimizer; both must keep common
steps, or neither; on one rank it is 0 by definition. Input is the part of the compute time that goes into waiting
for images, of the rank that waits longest. Sent bytes and messages are per step, of the rank that sends most, of
those that take steps.
Load balance and communication efficiency are those of the POP project (Rosas, Gimenez & Labarta, Scalability
prediction for fundamental performance factors, 2014).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcdl.analysis.bandwidth import bus_factor
from hpcdl.analysis.fields import (
    ANY,
    CONTRACT,
    LOCKSTEP,
    TRAININGS,
    Key,
    batch,
    configuration,
    planned_steps,
    problem,
    scaling_of,
)
from hpcdl.analysis.launches import Launch, launches
from hpcdl.analysis.outcome import kept, learned
from hpcdl.analysis.statistics import (
    NOTHING,
    Interval,
    Middle,
    Vector,
    difference_interval,
    launches_interval,
    quantile,
    ratio_interval,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from hpcdl.trace.run import Run

Record = dict[str, Any]


class AmbiguousCaseError(Exception):
    """Two cases that nothing tells apart; pooling them would be a silent mistake."""


@dataclass(frozen=True)
class _Point:
    """One record to be: the launches of one configuration at one scale with one seed."""

    key: Key
    problem: Key
    aggregation: str
    ranks: int
    seed: Any
    launches: list[Launch]

    @property
    def fields(self) -> Mapping[str, Any]:
        return self.launches[0].fields

    @property
    def seconds(self) -> list[Vector]:
        return [launch.seconds for launch in self.launches]

    @property
    def middle(self) -> Middle:
        return self.launches[0].middle

    @property
    def is_training(self) -> bool:
        return self.fields.get("kind", "train") in TRAININGS


def records(run: Run) -> list[Record]:
    """One dictionary per case and seed, in the order in which they ran.

    It has all fields of the contract (None where they do not apply, or nothing was measured), then ``run``,
    ``seed``, ``launches``, ``planned_steps``, ``warmup_steps``, ``measured_steps``, ``ranks_recorded``,
    ``base_ranks``, ``base_aggregation`` ("any" when several were taken together), ``base_launches``,
    ``base_step_seconds``, ``exposed_communication_seconds_low`` and ``_high``, ``load_balance``,
    ``communication_efficiency``, ``best_accuracy``, ``memory_bytes_per_rank`` (of the rank that holds most),
    ``consensus_distance`` (at the end), ``workers``, ``gradients_per_update``, ``staleness_expected``,
    ``time_p95_seconds``, ``time_max_seconds``, ``time_p50_low_seconds``, ``time_p50_high_seconds``, then whatever
    else the case holds. Raises AmbiguousCaseError.
    """
    points = _points(launches(run))
    return [_record(point, points, run.path.name) for point in points]


def _points(found: Iterable[Launch]) -> list[_Point]:
    points: dict[Key, _Point] = {}
    for launch in found:
        fields = launch.fields
        key, ranks, seed = configuration(fields), int(fields.get("ranks") or 1), fields.get("seed")
        empty = _Point(key, problem(fields), str(fields.get("aggregation") or "none"), ranks, seed, [])
        point = points.setdefault((key, ranks, seed), empty)
        for other in point.launches:
            if other.fields.get("launch") == fields.get("launch"):
                raise AmbiguousCaseError(
                    f"cases {other.fields.get('case')!r} and {fields.get('case')!r} (launch "
                    f"{fields.get('launch')}) differ in nothing the analysis knows; "
                    "what tells them apart belongs in the field 'configuration'"
                )
        point.launches.append(launch)
    return list(points.values())


def _record(point: _Point, points: Sequence[_Point], run: str) -> Record:
    computed: Record = {
        "run": run,
        "seed": point.seed,
        "launches": len(point.launches),
        "ranks": point.ranks,
        "scaling": scaling_of(point.fields) if point.is_training else None,
        "steps": _whole(point, lambda launch: launch.total_steps),
        "planned_steps": planned_steps(point.fields) if point.is_training else None,
        "warmup_steps": point.launches[0].warmup_steps,
        "measured_steps": sum(launch.measured_steps for launch in point.launches),
        "ranks_recorded": min(launch.ranks_recorded for launch in point.launches),
        "bytes_sent_per_rank": _middle(point, lambda launch: launch.bytes_sent),
        "messages_per_rank": _middle(point, lambda launch: launch.messages),
        "correct": _verdict(point),
        "error": next((text for launch in point.launches if (text := launch.fields.get("error"))), None),
        **(_training(point, points) if point.is_training else _collective(point)),
    }
    given = dict(point.fields)
    given.pop("launch", None)
    if len(point.launches) > 1:  # what one launch says of itself is not said of all
        given = {name: value for name, value in given.items() if name not in computed}
    known = {**given, **{name: value for name, value in computed.items() if value is not None}}
    return {name: _json(known.get(name)) for name in dict.fromkeys((*CONTRACT, *computed, *given))}


def _training(point: _Point, points: Sequence[_Point]) -> Record:
    step = launches_interval(point.seconds, point.middle)
    compute = _middle(point, lambda launch: launch.compute_seconds) or None
    images = _middle(point, lambda launch: launch.images) or batch(point.fields)
    exposed = _exposed(point, points)
    return {
        "step_seconds": step.value,
        "step_seconds_low": step.low,
        "step_seconds_high": step.high,
        "images_per_second": images / step.value if images and step.value > 0 else None,
        **_scaling(point, points),
        "compute_seconds": compute,
        "input_seconds": _middle(point, lambda launch: launch.input_seconds) or None,
        "exposed_communication_seconds": exposed.value,
        "exposed_communication_seconds_low": exposed.low,
        "exposed_communication_seconds_high": exposed.high,
        "load_balance": compute
        and _middle(point, lambda launch: _share(launch.mean_compute_seconds, launch.compute_seconds)),
        "communication_efficiency": compute
        and _middle(point, lambda launch: _share(launch.compute_seconds, launch.seconds)),
        **learned(point.launches),
        **kept(point.launches),
    }


def _exposed(point: _Point, points: Sequence[_Point]) -> Interval:
    if not any(map(len, point.seconds)):
        return NOTHING
    if point.ranks == 1 or point.aggregation == "none":
        return Interval(0.0, 0.0, 0.0)
    ceiling = [
        other
        for other in points
        if (other.aggregation, other.problem, other.ranks) == ("none", point.problem, point.ranks)
        and other.middle == point.middle
    ]
    ceiling = _nearest(_nearest(ceiling, point, "training", *LOCKSTEP), point, "optimizer")
    if not ceiling:
        return NOTHING
    return difference_interval(
        point.seconds, _same_seed(ceiling, point.seed), middles=(point.middle, point.middle)
    )


def _scaling(point: _Point, points: Sequence[_Point]) -> Record:
    scaling = scaling_of(point.fields)
    base = _base(point, points)
    times = _same_seed(base, point.seed)
    if scaling not in {"strong", "weak"} or not times or not any(map(len, point.seconds)):
        return dict.fromkeys(("speedup", "efficiency", "efficiency_low", "efficiency_high"))
    scale = point.ranks / base[0].ranks
    itself = any(other is point for other in base)
    low = high = ratio = 1.0
    if not itself:
        ratio, low, high = ratio_interval(times, point.seconds, middles=(base[0].middle, point.middle))
    per_rank = 1 / scale if scaling == "strong" else 1.0
    aggregations = {other.aggregation for other in base}
    return {
        "speedup": ratio if scaling == "strong" else ratio * scale,
        "efficiency": ratio * per_rank,
        "efficiency_low": low * per_rank,
        "efficiency_high": high * per_rank,
        "base_ranks": base[0].ranks,
        "base_aggregation": ANY if len(aggregations) > 1 else base[0].aggregation,
        "base_launches": len(times),
        "base_step_seconds": launches_interval(times, base[0].middle).value,
    }


def _base(point: _Point, points: Sequence[_Point]) -> list[_Point]:
    """All seeds of what ``point`` is compared with: measured, at one scale, one program."""
    measured = [other for other in points if other.problem == point.problem and any(map(len, other.seconds))]
    single = [other for other in measured if other.ranks == 1]
    for name, rest in (("compression", ("none",)), ("optimizer", ()), ("training", LOCKSTEP)):
        single = _nearest(single, point, name, *rest)
    if single:
        return single
    own = [other for other in measured if other.key == point.key]
    return [other for other in own if other.ranks == min(one.ranks for one in own)]


def _nearest(points: Sequence[_Point], to: _Point, name: str, *rest: str) -> list[_Point]:
    """Those whose field is the same as that of ``to``, else as the first of ``rest``, else as that of any one."""
    said = [str(point.fields.get(name) or "none") for point in points]
    wanted = str(to.fields.get(name) or "none")
    chosen = next((one for one in (wanted, *rest, *said) if one in said), None)
    return [point for point, one in zip(points, said, strict=True) if one == chosen]


def _same_seed(points: Sequence[_Point], seed: Any) -> list[Vector]:
    """Step times, one vector per launch: those of ``seed`` if it is there, else those of every seed."""
    same = [point for point in points if point.seed == seed]
    return [vector for point in same or points for vector in point.seconds if len(vector)]


def _collective(point: _Point) -> Record:
    """Times of one operation; bandwidths are those of its median."""
    times = launches_interval(point.seconds)
    size = point.fields.get("message_bytes")
    name = str(point.fields.get("collective") or point.fields.get("kind"))
    bandwidth = size / times.value if size is not None and times.value > 0 else None
    factor = bus_factor(name, point.ranks)
    measured = [vector for vector in point.seconds if len(vector)]
    return {
        "time_p50_seconds": times.value,
        "time_p50_low_seconds": times.low,
        "time_p50_high_seconds": times.high,
        "time_p95_seconds": _median([quantile(vector, 0.95) for vector in measured]),
        "time_p99_seconds": _median([quantile(vector, 0.99) for vector in measured]),
        "time_max_seconds": max((float(vector.max()) for vector in measured), default=None),
        "algbw_bytes_per_second": bandwidth,
        "busbw_bytes_per_second": None if bandwidth is None or factor is None else bandwidth * factor,
    }


def _verdict(point: _Point) -> bool | None:
    """False when any launch failed its check, None when any was not checked."""
    said = [launch.fields.get("correct") for launch in point.launches]
    return False if False in said else True if all(said) else None


def _middle(point: _Point, of: Callable[[Launch], Vector]) -> float | None:
    """Median over launches of the median over steps, or of the mean over windows."""
    vectors = [(launch, of(launch)) for launch in point.launches]
    return _median([launch.typical(vector) for launch, vector in vectors if len(vector)])


def _share(part: Vector, whole: Vector) -> Vector:
    return part[whole > 0] / whole[whole > 0]


def _whole(point: _Point, of: Callable[[Launch], int]) -> int | None:
    return max((of(launch) for launch in point.launches), default=0) or None


def _median(values: Any) -> float | None:
    return float(np.median(values)) if len(values) else None


def _json(value: Any) -> Any:
    """Plain Python, and None for what is not a finite number: JSON has no NaN."""
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
