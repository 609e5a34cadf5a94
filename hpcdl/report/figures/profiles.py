"""Performance profiles over the cells of a run, and the map of methods and cells."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hpcdl.analysis.run.deciding import WIDEST, area
from hpcdl.report.formats.cells import digits
from hpcdl.report.formats.charts import Axis, HeatMap, Lines, Point, Series
from hpcdl.report.run.method_names import Names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.analysis.run.deciding import Decision, Timed
    from hpcdl.report.formats.charts import Chart
    from hpcdl.report.run.findings import Findings

MAX_CELLS = 24
"""Columns of the map, at most."""


class Naming(NamedTuple):
    """Names of the methods and cells of a run."""

    names: Names
    shared: frozenset[str]
    """Words that all cells have."""

    def method(self, place: Timed) -> str:
        """Return the name of a method, the same in all cells."""
        return self.names(place.candidate.fields)

    def cell(self, one: Decision) -> str:
        """Return what tells a cell from the others."""
        return ", ".join(word for word in _words(one) if word not in self.shared) or "all"

    def ratios(self, found: Sequence[Decision]) -> dict[str, list[float]]:
        """Return by method its time in each cell by the best one, of methods that are in every cell."""
        by_method: dict[str, list[float]] = {}
        for one in found:
            for place, ratio in zip(one.places, one.ratios, strict=True):
                by_method.setdefault(self.method(place), []).append(ratio)
        return {method: ratios for method, ratios in by_method.items() if len(ratios) == len(found)}


def named(found: Sequence[Decision]) -> Naming:
    """Return the names for these cells."""
    names = Names(place.candidate.fields for one in found for place in one.places)
    words = [set(_words(one)) for one in found]
    return Naming(names, frozenset(set.intersection(*words)) if len(words) > 1 else frozenset())


def _words(one: Decision) -> list[str]:
    fields = one.fields
    conditions = ", ".join(one.field.conditions).removeprefix("simulated on ")
    return [str(fields["model"]), str(fields["dataset"]), f"{fields['ranks']} ranks", *conditions.split(", ")]


def charts(findings: Findings) -> list[Chart]:
    """Return the profiles and the map, where there are several cells."""
    found = findings.decisions
    if len(found) < 2:
        return []
    name = named(found)
    ratios = sorted(name.ratios(found).items(), key=lambda item: -area(item[1]))
    if not ratios:
        return []
    steps = np.geomspace(1, WIDEST, 40)
    lines = [
        Series(method, [Point(float(t), float(np.mean(np.array(own) <= t * (1 + 1e-12)))) for t in steps])
        for method, own in ratios
    ]
    profile = Lines(
        "Performance profiles",
        Axis("time to the target by that of the first", digits, 10),
        Axis("share of cells"),
        lines,
        "Share of cells in which a method reaches the target within so many times the best time of the cell.",
    )
    shown = found[:MAX_CELLS]
    heat = HeatMap(
        "Time to the target by method and cell",
        [method for method, _ in ratios],
        [name.cell(one) for one in shown],
        "method",
        "cell",
        np.array([[ratio if np.isfinite(ratio) else np.nan for ratio in own[: len(shown)]] for _, own in ratios]),
        Axis("time by that of the first"),
        "1: first in the cell; empty: not reached.",
    )
    return [profile, heat]
