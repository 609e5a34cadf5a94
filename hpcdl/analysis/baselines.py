"""Cases that a case is compared with: the base of its speedup, and the same training without communication."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpcdl.analysis.launches import undisturbed
from hpcdl.analysis.record_fields import is_independent, keeps_step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.analysis.launches import Launch
    from hpcdl.analysis.points import Point


def base_of(point: Point, points: Sequence[Point]) -> list[Point]:
    """Return the measured cases of all seeds that are the base of ``point``: of one scale and one program."""
    measured = [other for other in points if other.problem == point.problem and any(map(len, other.seconds))]
    single = [other for other in measured if other.ranks == 1]
    for name in ("compression", "optimizer", "training"):
        single = _nearest(single, point, name)
    if single:
        return single
    own = [other for other in measured if other.key == point.key]
    return [other for other in own if other.ranks == min(one.ranks for one in own)]


def without_communication(point: Point, points: Sequence[Point]) -> list[Point]:
    """Return the cases of the same problem and scale whose ranks do not communicate, of one program."""
    found = [
        other
        for other in points
        if is_independent(other.fields)
        and (other.problem, other.ranks) == (point.problem, point.ranks)
        and other.middle == point.middle
    ]
    return _nearest(_nearest(found, point, "training"), point, "optimizer")


def _nearest(points: Sequence[Point], to: Point, name: str) -> list[Point]:
    """Return the points whose field ``name`` is that of ``to``, else that of the usual one, else of any one.

    Usual are no compression, and a strategy in lock-step.
    """
    values = [str(point.fields.get(name) or "none") for point in points]
    in_step = [value for point, value in zip(points, values, strict=True) if keeps_step(point.fields)]
    usual = {"compression": ["none"], "training": in_step}.get(name, [])
    wanted = str(to.fields.get(name) or "none")
    chosen = next((one for one in (wanted, *usual, *values) if one in values), None)
    return [point for point, value in zip(points, values, strict=True) if value == chosen]


def same_seed(points: Sequence[Point], seed: Any) -> list[Launch]:
    """Return the launches whose times count, of ``seed`` if it is there, else of every seed."""
    same = [point for point in points if point.seed == seed] or points
    return undisturbed([launch for point in same for launch in point.launches if len(launch.seconds)])
