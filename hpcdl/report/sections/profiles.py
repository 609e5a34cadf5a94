"""Performance profiles (Dolan & More 2002): times to the target of each method by that of the first of a cell."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from hpcdl.analysis.run.deciding import WIDEST, Decision, area
from hpcdl.report.formats.cells import NONE, digits, plural, spread
from hpcdl.report.formats.document import Axis, Lines, Point, Section, Series, Table
from hpcdl.report.formats.verdicts import Verdict
from hpcdl.report.run.contents import Answer, Declaration, certainty
from hpcdl.report.run.findings import Findings
from hpcdl.report.sections.deciding import naming

HEADER: Final = ("method", "area", "first", "missed", "least ratio", "median ratio", "largest ratio")


def _ratios(findings: Findings) -> dict[str, list[float]]:
    """Return each method's times by the best of each cell, of methods judged in every cell; largest area first.

    Nothing for one method, nor for one cell unless the suite asks. Infinite: a seed missed the target.
    """
    decisions = findings.decisions
    asked = "profiles" in findings.answered_by
    kept = {method: ratios for method, ratios in _every(decisions).items() if len(ratios) == len(decisions)}
    if len(kept) < 2 or (len(decisions) < 2 and not asked):
        return {}
    return dict(sorted(kept.items(), key=lambda item: -area(item[1])))


def _every(decisions: Sequence[Decision]) -> dict[str, list[float]]:
    """Return the ratios of each method in the cells in which it has enough seeds; of several batches the least."""
    name = naming(decisions)
    by_method: dict[str, list[float]] = {}
    for decision in decisions:
        least: dict[str, float] = {}
        for place, ratio in zip(decision.places, decision.ratios, strict=True):
            method = name.method(place)
            by_method.setdefault(method, [])
            if place.state != "too few seeds":
                least[method] = min(ratio, least.get(method, np.inf))
        for method, ratio in least.items():
            by_method[method].append(ratio)
    return by_method


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
        for method, ratios in _ratios(findings).items()
    ]
    note = (
        f"Ratio: time to the target by the best one of the cell. Area under the performance profile up to "
        f"{WIDEST:g} times the best time; 1: first in every cell."
    )
    return Section("Over all cells", tables=[Table("", HEADER, rows, 1, [note])] if rows else [])


def answer(findings: Findings) -> Answer | None:
    """Return the range over the cells of each method's time by that of the first, and the methods left out."""
    ratios, decisions = _ratios(findings), findings.decisions
    if not ratios and "profiles" not in findings.answered_by:
        return None
    facts = {
        "cells": plural(len(decisions), "cell"),
        "ranges": "; ".join(f"{method} {_range(own)}" for method, own in ratios.items()),
        "basis": certainty([one for one in findings.records if one.target_accuracy is not None]),
    }
    if not ratios:
        return Answer(Verdict(topic="profiles", word="open", facts=facts).sentence)
    left_out = ", ".join(method for method in _every(decisions) if method not in ratios)
    cause = f"Without {left_out}: too few usable seeds, or not in every cell." if left_out else ""
    return Answer(Verdict(topic="profiles", word="ranges", cause=cause, facts=facts).sentence)


def _range(ratios: Sequence[float]) -> str:
    known = [ratio for ratio in ratios if np.isfinite(ratio)]
    if not known:
        return "misses the target with a seed"
    missed = len(ratios) - len(known)
    return spread(known) + (f", target missed in {missed}" if missed else "")


def charts(findings: Findings) -> list[Lines]:
    """Return the performance profiles, where there are several cells."""
    ratios = _ratios(findings)
    if not ratios:
        return []
    steps = np.geomspace(1, WIDEST, 40)
    lines = [
        Series(method, [Point(float(t), float(np.mean(np.array(own) <= t * (1 + 1e-12)))) for t in steps])
        for method, own in ratios.items()
    ]
    note = "Share of cells in which a method reaches the target within so many times the best time of the cell."
    axis = Axis("time by the first one's", digits, 10)
    return [Lines("Performance profiles", axis, Axis("share of cells"), lines, note)]


SECTION = Declaration(26, page, answer=answer, figures=(charts,))
