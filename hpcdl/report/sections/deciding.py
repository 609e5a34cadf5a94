"""Time to the target: the first method of each cell, and the searches for settings."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from hpcdl.analysis.run.deciding import MIN_SEEDS, Candidate, Decision
from hpcdl.analysis.run.record import Record
from hpcdl.report.formats.cells import NONE, digits, interval, plural, seconds, spread
from hpcdl.report.formats.document import Section, Table
from hpcdl.report.formats.verdicts import Verdict
from hpcdl.report.run.contents import Answer, Declaration, certainty
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.method_names import Names

MAX_NAMED: Final = 3
"""Methods that are named; more are counted."""
CAUSES: Final = ("disturbed", "failed", "not evaluated")
"""Causes for which a seed can't be used."""
ORDER: Final = ("decided", "alone", "tied", "undecided", "not reached", "not decided")
"""Verdicts on cells."""
NOTE: Final = (
    "Time to the target: geometric mean over seeds, up to the budget: the shortest training of a method that "
    "missed the target with some seeds. Decided: each other method is later by 5 % or more, and by the ratio of "
    "likelihoods, adjusted for all comparisons. A seed reaches the target between two evaluations; one that "
    "misses it, after its own training. Later by: 95 % interval of that test. Alone: no other method "
    "reached the target; a time if every seed did. Undecided: a method that never reached it has too few seeds, "
    f"or trained too briefly. Not decided: a method has fewer than {MIN_SEEDS} usable seeds."
)


class Naming(NamedTuple):
    """Names of the methods and cells of a run."""

    names: Names
    shared: frozenset[str]
    """Words that all cells have."""
    by_batch: bool
    """True if methods of a cell differ in their global batch."""

    def method(self, place: Candidate) -> str:
        """Return the name of a method, the same in all cells."""
        return self.names(_untuned(place.record))

    def place(self, place: Candidate) -> str:
        """Return the name of a method, with its batch where methods of a cell differ in it."""
        batch = f", batch {place.record.global_batch}" if self.by_batch else ""
        return f"{self.method(place)}{batch}"

    def cell(self, decision: Decision) -> str:
        """Return what tells a cell from the others."""
        return ", ".join(word for word in _words(decision) if word not in self.shared) or "plain"


def naming(decisions: Sequence[Decision]) -> Naming:
    """Return the names of the methods and cells of a run."""
    names = Names(_untuned(place.record) for decision in decisions for place in decision.places)
    words = [set(_words(decision)) for decision in decisions]
    shared = frozenset(set.intersection(*words)) if len(words) > 1 else frozenset[str]()
    batches = ({place.record.global_batch for place in one.places} for one in decisions)
    return Naming(names, shared, any(len(each) > 1 for each in batches))


def _untuned(record: Record) -> Record:
    """Return the case without a learning rate that a search replaced."""
    return record.but(learning_rate=None) if record.tuned else record


def _words(decision: Decision) -> list[str]:
    record = decision.record
    conditions = ", ".join(decision.field.conditions).removeprefix("simulated on ")
    problem = (str(name).partition("(")[0] for name in (record.model, record.dataset))
    return [*problem, plural(record.ranks, "rank"), *filter(None, re.split(r", (?![^(\[]*[)\]])", conditions))]


def page(findings: Findings) -> Section:
    """Return the cells, the methods that missed seeds, and what was tuned."""
    decisions, title = findings.decisions, "Time to the target"
    if not decisions:
        return Section(title)
    name = naming(decisions)
    header = ("cell", "first", "time", "epochs", "second", "later by", "tied with", "budget", "verdict")
    tables = [Table("", header, [_cell(name, one) for one in decisions], 2, [NOTE]).without_empty()]
    if missed := [row for one in decisions for row in _missed(name, one)]:
        counts = ("cell", "method", "reached", "missed", *CAUSES, "compared")
        tables.append(Table("Missed seeds, and methods left out", counts, missed, 2).without_empty())
    tuned = {
        (str(record.model), str(record.ranks), name.method(place), *map(str, found))
        for place in (place for one in decisions for place in one.places)
        for record in [place.record]
        if record.tuned
        for found in [(record.tuned, record.tuning, record.tuning_images)]
    }
    if tuned:
        spent = ("model", "ranks", "method", "found", "trials", "images")
        note = "Images: training images of all trials of a search."
        tables.append(Table("Tuning", spent, sorted(tuned), 4, [note]))
    return Section(title, tables=tables)


def _cell(name: Naming, decision: Decision) -> tuple[str, ...]:
    (first, second, *_), (ratio, low, _) = decision.places, decision.lead
    reached = first.missed < len(first.seconds)
    timed = reached and (decision.verdict != "alone" or decision.is_won)
    return (
        name.cell(decision),
        name.place(first) if reached else NONE,
        seconds(first.mean(decision.budget)) if timed else NONE,
        digits(first.median_of("epoch")) if timed else NONE,
        f"{name.place(second)}, {digits(ratio)} times" if second.state != "not reached" and ratio > 0 else NONE,
        _bounds(decision) if low > 0 else NONE,
        several([name.place(rival) for rival in decision.rivals]),
        seconds(decision.budget) if np.isfinite(decision.budget) else NONE,
        decision.verdict,
    )


def _bounds(decision: Decision) -> str:
    """Return the interval by which the second is later; without an upper bound its least one."""
    _, low, high = decision.lead
    return interval(low, high) if np.isfinite(high) else f"at least {digits(low)}"


def _missed(name: Naming, decision: Decision) -> list[tuple[str, ...]]:
    return [
        (
            name.cell(decision),
            name.place(place),
            str(len(place.seconds) - place.missed),
            str(place.missed or NONE),
            *(str(place.lost.get(cause, NONE)) for cause in CAUSES),
            {
                "too few seeds": f"no: fewer than {MIN_SEEDS} usable seeds",
                "not reached": f"yes, as later than {seconds(place.training)}",
                "some missed": "yes, missed seeds as later than their training",
            }.get(place.state, "yes"),
        )
        for place in decision.places
        if place.state != "reached" or place.lost
    ]


def several(names: Sequence[str]) -> str:
    """Return the first names and the number of the others."""
    more = [f"{len(names) - MAX_NAMED} more"] if len(names) > MAX_NAMED else []
    return "; ".join([*names[:MAX_NAMED], *more]) or NONE


def verdict(name: Naming, decision: Decision) -> Verdict:
    """Return the verdict on a cell."""
    first, second = decision.places[:2]
    others = {"tied": decision.rivals, "not decided": decision.open}.get(decision.verdict, [second])
    unfinished = [f"{name.place(place)} (in {seconds(place.training)})" for place in decision.unfinished]
    seeds, time = plural(len(first.seconds), "seed"), seconds(first.mean(decision.budget))
    return Verdict(
        topic="deciding",
        word=decision.verdict,
        question="Which method reaches the target first?",
        case=name.cell(decision),
        size=decision.lead,
        launches=[len(place.seconds) for place in (first, second)],
        marks=["simulated"] if decision.record.network else [],
        cause=_cause(name, decision),
        facts={
            "first": name.place(first),
            "time": time,
            "seeds": seeds,
            # a time would be that of its budget, where seeds missed it
            "reached": f"with {len(first.seconds) - first.missed} of {seeds}"
            if first.missed
            else f"in {time} ({seeds})",
            "others": several(unfinished or [name.place(place) for place in others]),
            "later": f"{digits(decision.lead.value)} ({_bounds(decision)})",
            "least": str(MIN_SEEDS),
        },
    )


def _cause(name: Naming, decision: Decision) -> str:
    missed = [
        f"{name.place(place)} with {place.missed} of {plural(len(place.seconds), 'seed')}"
        for place in decision.places
        if place.missed
    ]
    return f"The target was missed by {several(missed)}." if missed else ""


def answer(findings: Findings) -> Answer | None:
    """Return the methods that win, in how many cells, and by how much; then the verdict on each cell."""
    decisions = findings.decisions
    asked = "deciding" in findings.answered_by
    if not decisions or (not asked and all(decision.verdict == "not decided" for decision in decisions)):
        return None
    name = naming(decisions)
    if len(decisions) == 1:
        return Answer(verdict(name, decisions[0]).sentence)
    won = [one for one in decisions if one.is_won]
    counts, wins = Counter(one.verdict for one in decisions), Counter(name.place(one.places[0]) for one in won)
    leads = [one.lead.value for one in won if one.verdict == "decided"]
    facts = {
        "cells": plural(len(decisions), "cell"),
        "counts": ", ".join(f"{counts[word]} {word}" for word in ORDER if counts[word]),
        "winners": ", ".join(f"{method} in {number}" for method, number in wins.most_common(MAX_NAMED)),
        "later": f"; the next method takes {spread(leads)} times as long" if leads else "",
        "basis": certainty([record for record in findings.records if record.target_accuracy is not None]),
    }
    word = "first in cells" if wins else "no first"
    lines = [verdict(name, one).sentence for one in decisions]
    return Answer(Verdict(topic="deciding", word=word, facts=facts).sentence, lines)


SECTION = Declaration(25, page, rows=48, answer=answer)
