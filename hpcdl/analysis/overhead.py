"""What a way of doing a thing costs: the same program with and without it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from hpcdl.analysis.fields import CONFIGURATION, problem, scheme
from hpcdl.analysis.launches import launches
from hpcdl.analysis.statistics import Interval, Vector, difference_interval, launches_interval, ratio_interval

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hpcdl.analysis.fields import Key
    from hpcdl.trace.run import Run

TRACED: Final = {"trace=events": True, "trace=steps": False}
"""Parts of a case's ``configuration``."""
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
    """Tracing every event against tracing steps only, for each case that ran both ways."""
    return _pairs(run, _tracing)


def fabric(run: Run) -> list[Overhead]:
    """Exchanges through the fabric against mpi4py's own, for each size that was measured both ways."""
    return _pairs(run, _fabric)


def _tracing(fields: Mapping[str, Any]) -> tuple[bool, Key] | None:
    parts = {part.strip() for part in str(fields.get("configuration") or "").split(",")}
    said = parts & TRACED.keys()
    if len(said) != 1:
        return None
    rest = ", ".join(sorted(parts - said))
    return TRACED[said.pop()], (problem({**fields, "configuration": rest}), scheme(fields))


def _fabric(fields: Mapping[str, Any]) -> tuple[bool, Key] | None:
    aggregation = fields.get("aggregation")
    if fields.get("kind") != "pairwise" or aggregation not in HANDED_ON:
        return None
    return HANDED_ON[aggregation], tuple(fields.get(name) for name in CONFIGURATION)


def _pairs(run: Run, side: Callable[[Mapping[str, Any]], tuple[bool, Key] | None]) -> list[Overhead]:
    """Seeds are launches here: they change what is learned, not what is done."""
    found: dict[Key, dict[bool, list[Vector]]] = {}
    named: dict[Key, Mapping[str, Any]] = {}
    for launch in launches(run):
        chosen = side(launch.fields)
        if chosen is not None and len(launch.seconds):
            has_it, key = chosen[0], (*chosen[1], launch.fields.get("ranks"))
            found.setdefault(key, {True: [], False: []})[has_it].append(launch.seconds)
            if has_it:
                named.setdefault(key, launch.fields)
    return [
        Overhead(
            named[key],
            launches_interval(both[False]),
            launches_interval(both[True]),
            difference_interval(both[True], both[False]),
            ratio_interval(both[True], both[False]),
        )
        for key, both in found.items()
        if both[True] and both[False]
    ]
