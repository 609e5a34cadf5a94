"""Performance profiles (Dolan & More 2002): times to the target of each method by that of the first of a cell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from hpcdl.analysis.run.deciding import WIDEST, area
from hpcdl.report.formats.cells import NONE, digits, interval, plural
from hpcdl.report.formats.charts import Axis, Lines, Point, Series
from hpcdl.report.formats.document import Section, Table
from hpcdl.report.run.contents import Answer, Declaration
from hpcdl.report.sections.deciding import naming
from hpcdl.report.verdicts import Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.report.run.findings import Findings
    from hpcdl.report.verdicts import Mark

HEADER: Final = ("method", "area", "first", "missed", "least ratio", "median ratio", "largest ratio")


def _ratios(findings: Findings) -> list[tuple[str, list[float]]]:
    """Return each method's times by the best of each cell, of methods in every cell; largest area first.

    Nothing unless there are several cells and methods. Infinite: a seed missed the target.
    """
    decisions = findings.decisions
    name = naming(decisions)
    by_method: dict[str, list[float]] = {}
    for decision in decisions:
        for place, ratio in zip(decision.places, decision.ratios, strict=True):
            by_method.setdefault(name.method(place), []).append(ratio)
    kept = [(method, ratios) for method, ratios in by_method.items() if len(ratios) == len(decisions)]
    return sorted(kept, key=lambda item: -area(item[1])) if min(len(decisions), len(kept)) > 1 else []


def page(findings: Findings) -> Section:
    """Return a row for each method of every cell."""
    rows = [
        (
            method,
            digits(area(ratios)),
            str(sum(ratio == 1 for ratio in ratios)),
            str(sum(not np.isfinite(ratio) for ratio in ratios)),
            *(
                digits(value) if np.isfinite(value) else NONE
                for value in (min(ratios), float(np.median(ratios)), max(ratios))
            ),
        )
        for method, ratios in _ratios(findings)
    ]
    note = (
        f"Ratio: time to the target by the best one of the cell. Area under the performance profile up to "
        f"{WIDEST:g} times the best time; 1: first in all {len(findings.decisions)} cells."
    )
    return Section("Over all cells", tables=[Table("", HEADER, rows, 1, [note])] if rows else [])


def answer(findings: Findings) -> Answer | None:
    """Return the range over the cells of each method's time by that of the first."""
    ratios, decisions = _ratios(findings), findings.decisions
    if not ratios:
        return None
    facts = {
        "cells": plural(len(decisions), "cell"),
        "ranges": ", ".join(f"{method} {_range(own)}" for method, own in ratios),
    }
    marks: list[Mark] = ["simulated"] if all(one.fields.get("network") for one in decisions) else []
    return Answer(Verdict(topic="profiles", word="ranges", marks=marks, facts=facts).sentence)


def _range(ratios: Sequence[float]) -> str:
    known = [ratio for ratio in ratios if np.isfinite(ratio)]
    missed = len(ratios) - len(known)
    words = [interval(min(known), max(known))] if known else []
    return ", ".join([*words, *([f"target missed in {missed}"] if missed else [])])


def charts(findings: Findings) -> list[Lines]:
    """Return the performance profiles, where there are several cells."""
    ratios = _ratios(findings)
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


SECTION = Declaration(26, page, answer=answer, figures=(charts,))
