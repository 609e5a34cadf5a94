"""Overheads: the same program with and without the fabric, and with and without tracing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hpcdl.analysis.run.record_fields import method, problem, settings
from hpcdl.analysis.statistics.estimates import (
    Interval,
    Vector,
    difference_interval,
    launches_interval,
    median_interval,
    ratio_interval,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hpcdl.analysis.run.launches import Launch
    from hpcdl.analysis.run.record_fields import Key


ALTERNATING: Final = "alternating"
"""Setting ``trace`` of a case that traced events in its even steps only."""
HANDED_ON: Final = {"fabric": True, "raw": False}
"""Aggregations of a pairwise case: through the fabric, or plain MPI."""


@dataclass(frozen=True)
class Overhead:
    """One program measured both ways; seconds of a step, or of one operation, each of the slowest rank."""

    fields: Mapping[str, Any]
    """Of a case that has it."""
    without: Interval
    having: Interval
    difference: Interval
    """Seconds: ``having`` less ``without``."""
    ratio: Interval
    """``having`` by ``without``."""


def tracing(launches: Iterable[Launch]) -> list[Overhead]:
    """Tracing every event against tracing steps only, from the even and the odd steps of the same training.

    The difference is smaller than the drift of a machine from one case to the next, so each launch is compared
    with itself; the intervals are over launches. Seeds are launches.
    """
    groups: dict[Key, tuple[Mapping[str, Any], dict[bool, list[Vector]]]] = {}
    for launch in launches:
        if settings(launch.fields).get("trace") == ALTERNATING and len(launch.seconds) > 1:
            key = (problem(launch.fields), method(launch.fields), launch.fields.get("ranks"))
            _, sides = groups.setdefault(key, (launch.fields, {True: [], False: []}))
            for offset in (0, 1):
                traced = (launch.warmup_steps + offset) % 2 == 0
                sides[traced].append(launch.seconds[offset::2])
    return [_paired(fields, sides) for fields, sides in groups.values()]


def fabric(launches: Iterable[Launch]) -> list[Overhead]:
    """Exchanges through the fabric against mpi4py's own, for each size that was measured both ways."""
    groups: dict[Key, dict[bool, list[Vector]]] = {}
    named: dict[Key, Mapping[str, Any]] = {}
    for launch in launches:
        aggregation = launch.fields.get("aggregation")
        if launch.fields.get("kind") == "pairwise" and aggregation in HANDED_ON and len(launch.seconds):
            key = (problem(launch.fields), launch.fields.get("ranks"))
            groups.setdefault(key, {True: [], False: []})[HANDED_ON[aggregation]].append(launch.seconds)
            named.setdefault(key, launch.fields)
    return [_overhead(named[key], both) for key, both in groups.items() if both[True] and both[False]]


def _paired(fields: Mapping[str, Any], sides: Mapping[bool, list[Vector]]) -> Overhead:
    having = np.array([np.median(side) for side in sides[True]])
    without = np.array([np.median(launch) for launch in sides[False]])
    return Overhead(
        fields,
        launches_interval(sides[False]),
        launches_interval(sides[True]),
        median_interval(having - without),
        median_interval(having / without),
    )


def _overhead(fields: Mapping[str, Any], sides: Mapping[bool, list[Vector]]) -> Overhead:
    return Overhead(
        fields,
        launches_interval(sides[False]),
        launches_interval(sides[True]),
        difference_interval(sides[True], sides[False]),
        ratio_interval(sides[True], sides[False]),
    )
