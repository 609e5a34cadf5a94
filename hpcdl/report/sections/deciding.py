"""Time to the target: the first method of each cell, performance profiles, and the searches for settings."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import numpy as np

from hpcdl.analysis.run.deciding import WIDEST, area
from hpcdl.report.figures.profiles import charts, named
from hpcdl.report.formats.cells import NONE, digits, plural, seconds
from hpcdl.report.formats.document import Section, Table
from hpcdl.report.run.contents import Answer, Declaration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.analysis.run.deciding import Decision, Timed
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


SECTION = Declaration(25, page, rows=75, answer=answer, figures=(charts,))
