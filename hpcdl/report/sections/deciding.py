"""Time to the target: the first method of each cell, performance profiles, and the searches for settings."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from hpcdl.analysis.run.deciding import WIDEST, area
from hpcdl.report.formats.cells import NONE, digits, plural, seconds
from hpcdl.report.formats.charts import Axis, HeatMap, Lines, Point, Series
from hpcdl.report.formats.document import Section, Table
from hpcdl.report.run.contents import Answer, Declaration
from hpcdl.report.run.method_names import Names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.analysis.run.deciding import Decision, Timed
    from hpcdl.report.formats.charts import Chart
    from hpcdl.report.run.findings import Findings

MAX_RIVALS: Final = 3
"""Methods that are named; more are counted."""


def page(findings: Findings) -> Section:
    """Return the cells, the methods over all cells, and what was tuned."""
    found = findings.decisions
    if not found:
        return Section("Time to the target")
    name = named(found)
    cells = [
        (
            name.cell(one),
            name.method(one.places[0]) if one.places[0].reached else NONE,
            seconds(one.places[0].mean) if one.places[0].reached else NONE,
            digits(one.places[0].median_of("epoch")),
            _second(one, name.method(one.places[1])),
            _several([name.method(rival) for rival in one.rivals]),
            _several([name.method(place) for place in one.places if not place.reached]),
            one.verdict,
        )
        for one in found
    ]
    header = ("cell", "first", "time", "epochs", "second", "tied with", "not reached by", "verdict")
    note = (
        "Time to the target: geometric mean over seeds. A method that misses the target with one seed has not "
        "reached it. Decided: every other method is later by 5 % or more, and by a test of the logarithms of "
        "their ratio over seeds, adjusted for all comparisons of the page."
    )
    tables = [Table("", header, cells, 2, [note]).without_empty()]
    rows = [
        (
            method,
            digits(area(ratios)),
            f"{sum(ratio == 1 for ratio in ratios)}",
            _missed(ratios),
            digits(_median(ratios)),
        )
        for method, ratios in sorted(name.ratios(found).items(), key=lambda item: -area(item[1]))
    ]
    if len(found) > 1:
        profile = (
            f"Area under the performance profile (Dolan & More 2002) up to {WIDEST:g} times the best time of a "
            f"cell; 1: first in all {len(found)} cells. Methods of every cell only."
        )
        tables.append(
            Table("Over all cells", ("method", "area", "first", "missed", "median ratio"), rows, 1, [profile])
        )
    tuned = sorted(
        {row for one in found for place in one.places if (row := _search(one, place, name.method(place)))}
    )
    if tuned:
        spent = ("model", "ranks", "method", "found", "trials", "images")
        tables.append(Table("Tuning", spent, tuned, 4, ["Images: training images of all trials of a search."]))
    return Section("Time to the target", tables=tables)


def answer(findings: Findings) -> Answer | None:
    """Return how many cells are decided, and the methods that win."""
    found = findings.decisions
    if not found or all(one.verdict == "one seed" for one in found):
        return None
    name, counts = named(found), Counter(one.verdict for one in found)
    words = ", ".join(
        f"{counts[verdict]} {verdict}"
        for verdict in ("decided", "tied", "not reached", "one seed")
        if counts[verdict]
    )
    wins = Counter(name.method(one.places[0]) for one in found if one.verdict == "decided")
    best = ", ".join(f"{method} in {number}" for method, number in wins.most_common(MAX_RIVALS))
    headline = f"Time to the target in {plural(len(found), 'cell')}: {words}{f'; first: {best}' if best else ''}."
    every = sorted(((area(ratios), method) for method, ratios in name.ratios(found).items()), reverse=True)
    if len(found) < 2 or len(every) < 2:
        return Answer(headline)
    (most, best), (less, second) = every[:2]
    over_all = f"Over all cells {best} is best (area of its performance profile {digits(most)})"
    return Answer(headline, [f"{over_all}, then {second} ({digits(less)})."])


def _second(one: Decision, method: str) -> str:
    ratio = one.ratios[1]
    return f"{method}, {digits(ratio)} times" if np.isfinite(ratio) else NONE


def _several(names: Sequence[str]) -> str:
    more = [f"{len(names) - MAX_RIVALS} more"] if len(names) > MAX_RIVALS else []
    return "; ".join([*names[:MAX_RIVALS], *more]) or NONE


def _missed(ratios: Sequence[float]) -> str:
    return str(sum(not np.isfinite(ratio) for ratio in ratios))


def _median(ratios: Sequence[float]) -> float | None:
    value = float(np.median(ratios))
    return value if np.isfinite(value) else None


def _search(one: Decision, place: Timed, method: str) -> tuple[str, ...] | None:
    fields = place.candidate.launches[0].fields
    if not fields.get("tuned"):
        return None
    given = (fields["tuned"], fields["tuning"], fields["tuning_images"])
    return (str(one.fields["model"]), str(one.fields["ranks"]), method, *map(str, given))


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


SECTION = Declaration(25, page, rows=48, answer=answer, figures=(charts,))
