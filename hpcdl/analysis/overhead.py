"""What a way of doing a thing costs: the same program with and without it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hpcdl.analysis.fields import PROBLEM, method, problem
from hpcdl.analysis.launches import launches
from hpcdl.analysis.statistics import (
    Interval,
    Vector,
    difference_interval,
    launches_interval,
    median_interval,
    ratio_interval,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcdl.analysis.fields import Key
    from hpcdl.trace.run import Run

ALTERNATING: Final = "trace=alternating"
"""Part of the ``configuration`` of a case that traced events in its even steps only."""
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


def tracing(run: Run) -> list[Overhead]:
    """Tracing every event against tracing steps only, from the even and the odd steps of the same training.

    The difference is smaller than what a machine drifts from one case to the next, so each launch is compared
    with itself; the intervals are over launches. Seeds are launches.
    """
    found: dict[Key, tuple[Mapping[str, Any], dict[bool, list[Vector]]]] = {}
    for launch in launches(run):
        if ALTERNATING in str(launch.fields.get("configuration")).split(", ") and len(launch.seconds) > 1:
            key = (problem(launch.fields), method(launch.fields), launch.fields.get("ranks"))
            _, sides = found.setdefault(key, (launch.fields, {True: [], False: []}))
            for offset in (0, 1):
                traced = (launch.warmup_steps + offset) % 2 == 0
                sides[traced].append(launch.seconds[offset::2])
    return [_paired(fields, sides) for fields, sides in found.values()]


def fabric(run: Run) -> list[Overhead]:
    """Exchanges through the fabric against mpi4py's own, for each size that was measured both ways."""
    found: dict[Key, dict[bool, list[Vector]]] = {}
    named: dict[Key, Mapping[str, Any]] = {}
    for launch in launches(run):
        aggregation = launch.fields.get("aggregation")
        if launch.fields.get("kind") == "pairwise" and aggregation in HANDED_ON and len(launch.seconds):
            key = tuple(launch.fields.get(name) for name in (*PROBLEM, "ranks"))
            found.setdefault(key, {True: [], False: []})[HANDED_ON[aggregation]].append(launch.seconds)
            named.setdefault(key, launch.fields)
    return [_overhead(named[key], both) for key, both in found.items() if both[True] and both[False]]


def _paired(fields: Mapping[str, Any], sides: Mapping[bool, list[Vector]]) -> Overhead:
    having = np.array([np.median(one) for one in sides[True]])
    without = np.array([np.median(one) for one in sides[False]])
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
