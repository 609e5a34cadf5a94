"""Time to the target: the first method of each cell, performance profiles, and the searches for settings."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from hpcdl.analysis.run.deciding import WIDEST, area
from hpcdl.report.formats.cells import NONE, digits, plural, seconds
from hpcdl.report.formats.charts import Axis, Lines, Point, Series
from hpcdl.report.formats.document import Section, Table
from hpcdl.report.run.contents import Answer, Declaration
from hpcdl.report.run.method_names import Names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpcdl.analysis.run.deciding import Decision, Timed
    from hpcdl.report.run.findings import Findings

MAX_NAMED: Final = 3
"""Methods that are named; more are counted."""
NOTE: Final = (
    "Time to the target: geometric mean over seeds. A method that misses the target with one seed has not "
    "reached it. Decided: every other method is later by 5 % or more, and by a test of the logarithms of "
    "their ratio over seeds, adjusted for all comparisons of the page."
)


class Naming(NamedTuple):
    """Names of the methods and cells of a run."""

    names: Names
    shared: frozenset[str]
    """Words that all cells have."""

    def method(self, place: Timed) -> str:
        """Return the name of a method, the same in all cells."""
        return self.names(_untuned(place.candidate.fields))

    def cell(self, decision: Decision) -> str:
        """Return what tells a cell from the others."""
        return ", ".join(word for word in _words(decision) if word not in self.shared) or "all"

    def ratios(self, decisions: Sequence[Decision]) -> list[tuple[str, list[float]]]:
        """Return each method's times by the best of each cell, of methods in every cell; largest area first."""
        by_method: dict[str, list[float]] = {}
        for decision in decisions:
            for place, ratio in zip(decision.places, decision.ratios, strict=True):
                by_method.setdefault(self.method(place), []).append(ratio)
        kept = [(method, ratios) for method, ratios in by_method.items() if len(ratios) == len(decisions)]
        return sorted(kept, key=lambda item: -area(item[1]))


def _naming(decisions: Sequence[Decision]) -> Naming:
    names = Names(_untuned(place.candidate.fields) for decision in decisions for place in decision.places)
    words = [set(_words(decision)) for decision in decisions]
    return Naming(names, frozenset(set.intersection(*words)) if len(words) > 1 else frozenset())


def _untuned(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields without a learning rate that a search replaced."""
    return {name: value for name, value in fields.items() if not (name == "learning_rate" and fields.get("tuned"))}


def _words(decision: Decision) -> list[str]:
    fields = decision.fields
    conditions = ", ".join(decision.field.conditions).removeprefix("simulated on ")
    problem = (str(fields[name]).partition("(")[0] for name in ("model", "dataset"))
    return [*problem, f"{fields['ranks']} ranks", *conditions.split(", ")]


def page(findings: Findings) -> Section:
    """Return the cells, the methods over all cells, and what was tuned."""
    decisions, title = findings.decisions, "Time to the target"
    if not decisions:
        return Section(title)
    name = _naming(decisions)
    header = ("cell", "first", "time", "epochs", "second", "tied with", "not reached by", "verdict")
    tables = [Table("", header, [_cell(name, one) for one in decisions], 2, [NOTE]).without_empty()]
    if len(decisions) > 1:
        rows = [
            (
                method,
                digits(area(ratios)),
                str(sum(ratio == 1 for ratio in ratios)),
                str(sum(not np.isfinite(ratio) for ratio in ratios)),
                digits(middle if np.isfinite(middle := float(np.median(ratios))) else None),
            )
            for method, ratios in name.ratios(decisions)
        ]
        profile = (
            f"Area under the performance profile (Dolan & More 2002) up to {WIDEST:g} times the best time of a "
            f"cell; 1: first in all {len(decisions)} cells. Methods of every cell only."
        )
        over_all = ("method", "area", "first", "missed", "median ratio")
        tables.append(Table("Over all cells", over_all, rows, 1, [profile]))
    tuned = {
        (str(fields["model"]), str(fields["ranks"]), name.method(place), *map(str, found))
        for place in (place for one in decisions for place in one.places)
        for fields in [place.candidate.launches[0].fields]
        if fields.get("tuned")
        for found in [(fields["tuned"], fields["tuning"], fields["tuning_images"])]
    }
    if tuned:
        spent = ("model", "ranks", "method", "found", "trials", "images")
        note = "Images: training images of all trials of a search."
        tables.append(Table("Tuning", spent, sorted(tuned), 4, [note]))
    return Section(title, tables=tables)


def _cell(name: Naming, decision: Decision) -> tuple[str, ...]:
    first, second, ratio = decision.places[0], decision.places[1], decision.ratios[1]
    return (
        name.cell(decision),
        name.method(first) if first.reached else NONE,
        seconds(first.mean) if first.reached else NONE,
        digits(first.median_of("epoch")),
        f"{name.method(second)}, {digits(ratio)} times" if np.isfinite(ratio) else NONE,
        _several([name.method(rival) for rival in decision.rivals]),
        _several([name.method(place) for place in decision.places if not place.reached]),
        decision.verdict,
    )


def _several(names: Sequence[str]) -> str:
    more = [f"{len(names) - MAX_NAMED} more"] if len(names) > MAX_NAMED else []
    return "; ".join([*names[:MAX_NAMED], *more]) or NONE


def answer(findings: Findings) -> Answer | None:
    """Return how many cells are decided, and the methods that win."""
    decisions = findings.decisions
    if not decisions or all(decision.verdict == "one seed" for decision in decisions):
        return None
    name, counts = _naming(decisions), Counter(decision.verdict for decision in decisions)
    verdicts = ("decided", "tied", "not reached", "one seed")
    words = ", ".join(f"{counts[verdict]} {verdict}" for verdict in verdicts if counts[verdict])
    wins = Counter(name.method(decision.places[0]) for decision in decisions if decision.verdict == "decided")
    best = ", ".join(f"{method} in {number}" for method, number in wins.most_common(MAX_NAMED))
    cells = plural(len(decisions), "cell")
    headline = f"Time to the target in {cells}: {words}{f'; first: {best}' if best else ''}."
    every = name.ratios(decisions)
    if len(decisions) < 2 or len(every) < 2:
        return Answer(headline)
    (best, most), (second, less) = every[:2]
    over_all = f"Over all cells {best} is best (area of its performance profile {digits(area(most))})"
    return Answer(headline, [f"{over_all}, then {second} ({digits(area(less))})."])


def charts(findings: Findings) -> list[Lines]:
    """Return the performance profiles, where there are several cells."""
    decisions = findings.decisions
    ratios = _naming(decisions).ratios(decisions) if len(decisions) > 1 else []
    if not ratios:
        return []
    steps = np.geomspace(1, WIDEST, 40)
    lines = [
        Series(method, [Point(float(t), float(np.mean(np.array(own) <= t * (1 + 1e-12)))) for t in steps])
        for method, own in ratios
    ]
    note = "Share of cells in which a method reaches the target within so many times the best time of the cell."
    axis = Axis("time to the target by that of the first", digits, 10)
    return [Lines("Performance profiles", axis, Axis("share of cells"), lines, note)]


SECTION = Declaration(25, page, rows=48, answer=answer, figures=(charts,))
