"""Which method reaches a target first: in each cell, with its searches for settings, and over all cells.

Over all cells by performance profiles (Dolan & More 2002): times of each method by that of the first of a cell.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from hpcdl.analysis.run.deciding import MIN_SEEDS, WIDEST, Candidate, Decision, area
from hpcdl.analysis.run.record import Record
from hpcdl.report.formats.cells import NONE, digits, interval, plural, seconds, spread
from hpcdl.report.formats.document import Axis, Column, Importance, Lines, Point, Section, Series, Table, table
from hpcdl.report.formats.verdicts import Verdict
from hpcdl.report.run.declaration import Answer, Declaration, certainty
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.method_names import MAX_NAMED, Names, several

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


class Naming:
    """Names of the methods and cells of a run."""

    def __init__(self, decisions: Sequence[Decision]) -> None:
        cells = [decision.candidates for decision in decisions]
        self._names: Final = Names(_untuned(candidate) for candidates in cells for candidate in candidates)
        words = [set(_words(decision)) for decision in decisions]
        self._shared: Final = set.intersection(*words) if len(words) > 1 else set[str]()
        self._by_batch: Final = any(
            len({each.record.global_batch for each in candidates}) > 1 for candidates in cells
        )

    def method(self, candidate: Candidate) -> str:
        """Return the name of a method, the same in all cells."""
        return self._names(_untuned(candidate))

    def __call__(self, candidate: Candidate) -> str:
        """Return the name of a method, with its batch where methods of a cell differ in it."""
        batch = f", batch {candidate.record.global_batch}" if self._by_batch else ""
        return f"{self.method(candidate)}{batch}"

    def cell(self, decision: Decision) -> str:
        """Return what tells a cell from the others."""
        return ", ".join(word for word in _words(decision) if word not in self._shared) or "plain"


def _untuned(candidate: Candidate) -> Record:
    """Return the case without a learning rate that a search replaced."""
    record = candidate.record
    return record.but(learning_rate=None) if record.tuned else record


def _words(decision: Decision) -> list[str]:
    record = decision.first.record
    conditions = ", ".join(decision.conditions).removeprefix("simulated on ")
    problem = (str(name).partition("(")[0] for name in (record.model, record.dataset))
    return [*problem, plural(record.ranks, "rank"), *filter(None, re.split(r", (?![^(\[]*[)\]])", conditions))]


def page(findings: Findings) -> Section:
    """Return the cells, the methods that missed seeds, and what was tuned."""
    decisions, title = findings.decisions, "Time to the target"
    if not decisions:
        return Section(title)
    name = Naming(decisions)
    tables = [table(_cells(name), decisions, notes=[NOTE], left=2)]
    judged = [(decision, candidate) for decision in decisions for candidate in decision.candidates]
    if missed := [pair for pair in judged if pair[1].state != "reached" or pair[1].lost]:
        tables.append(table(_missed(name), missed, "Missed seeds, and methods left out", left=2))
    tuned = {
        (str(record.model), str(record.ranks), name.method(candidate), *map(str, search))
        for _, candidate in judged
        if (record := candidate.record).tuned
        for search in [(record.tuned, record.tuning, record.tuning_images)]
    }
    if tuned:
        spent = ("model", "ranks", "method", "found", "trials", "images")
        note = "Images: training images of all trials of a search."
        tables.append(Table("Tuning", spent, sorted(tuned), 4, [note]))
    return Section(title, tables=tables)


def _cells(name: Naming) -> list[Column[Decision]]:
    def second(decision: Decision) -> str:
        other, ratio = decision.candidates[1], decision.lead.value
        return f"{name(other)}, {digits(ratio)} times" if other.state != "not reached" and ratio > 0 else NONE

    return [
        Column("cell", name.cell),
        Column(
            "first", lambda decision: name(decision.first) if decision.first.reached else NONE, importance="answer"
        ),
        Column("time", lambda decision: seconds(decision.time), importance="answer"),
        Column("epochs", lambda decision: NONE if decision.time is None else digits(decision.first.epochs)),
        Column("second", second),
        Column(
            "later by", lambda decision: _later(decision) if decision.lead.low > 0 else NONE, importance="answer"
        ),
        Column("tied with", lambda decision: several([*map(name, decision.rivals)])),
        Column("budget", lambda decision: seconds(decision.budget) if np.isfinite(decision.budget) else NONE),
        Column("verdict", lambda decision: decision.verdict, importance="answer"),
    ]


def _later(decision: Decision) -> str:
    """Return the interval by which the second is later; without an upper bound its least one."""
    _, low, high = decision.lead
    return interval(low, high) if np.isfinite(high) else f"at least {digits(low)}"


def _missed(name: Naming) -> list[Column[tuple[Decision, Candidate]]]:
    def compared(candidate: Candidate) -> str:
        return {
            "too few seeds": f"no: fewer than {MIN_SEEDS} usable seeds",
            "not reached": f"yes, as later than {seconds(candidate.training)}",
            "some missed": "yes, missed seeds as later than their training",
        }.get(candidate.state, "yes")

    def lost(cause: str) -> Column[tuple[Decision, Candidate]]:
        return Column(cause, lambda pair: str(pair[1].lost[cause] or NONE))

    return [
        Column("cell", lambda pair: name.cell(pair[0])),
        Column("method", lambda pair: name(pair[1])),
        Column("reached", lambda pair: str(pair[1].reached)),
        Column("missed", lambda pair: str(pair[1].missed or NONE)),
        *map(lost, CAUSES),
        Column("compared", lambda pair: compared(pair[1]), importance="answer"),
    ]


def _verdict(name: Naming, decision: Decision) -> Verdict:
    """Return the verdict on a cell."""
    first, second, *_ = decision.candidates
    others = {"tied": decision.rivals, "not decided": decision.open}.get(decision.verdict, [second])
    unfinished = [f"{name(candidate)} (in {seconds(candidate.training)})" for candidate in decision.unfinished]
    counts = [(candidate, plural(len(candidate.seconds), "seed")) for candidate in decision.candidates]
    missed = [
        f"{name(candidate)} with {candidate.missed} of {seeds}" for candidate, seeds in counts if candidate.missed
    ]
    time, seeds = seconds(decision.time), counts[0][1]
    return Verdict(
        topic="deciding",
        word=decision.verdict,
        case=name.cell(decision),
        marks=["simulated"] if first.record.network else [],
        cause=f"The target was missed by {several(missed)}." if missed else "",
        facts={
            "first": name(first),
            "time": time,
            "seeds": seeds,
            # a time would be that of its budget, where seeds missed it
            "reached": f"with {first.reached} of {seeds}" if first.missed else f"in {time} ({seeds})",
            "others": several(unfinished or [*map(name, others)]),
            "later": f"{digits(decision.lead.value)} ({_later(decision)})",
            "least": str(MIN_SEEDS),
        },
    )


def answer(findings: Findings) -> Answer | None:
    """Return the methods that win, in how many cells, and by how much; then the verdict on each cell."""
    decisions, counts = findings.decisions, Counter(decision.verdict for decision in findings.decisions)
    if counts.keys() <= ({"not decided"} if "deciding" not in findings.answered_by else set()):
        return None
    name = Naming(decisions)
    lines = [_verdict(name, decision).sentence for decision in decisions]
    if len(lines) == 1:
        return Answer(lines[0])
    wins = Counter(name(decision.first) for decision in decisions if decision.is_won)
    leads = [decision.lead.value for decision in decisions if decision.verdict == "decided"]
    facts = {
        **_judged(findings),
        "counts": ", ".join(f"{counts[word]} {word}" for word in ORDER if counts[word]),
        "winners": ", ".join(f"{method} in {number}" for method, number in wins.most_common(MAX_NAMED)),
        "later": f"; the next method takes {spread(leads)} times as long" if leads else "",
    }
    word = "first in cells" if wins else "no first"
    return Answer(Verdict(topic="deciding", word=word, facts=facts).sentence, lines)


def _judged(findings: Findings) -> dict[str, str]:
    """Return the number of cells, and what sentences on them rest on."""
    basis = certainty([record for record in findings.records if record.target_accuracy is not None])
    return {"cells": plural(len(findings.decisions), "cell"), "basis": basis}


SECTION: Final = Declaration(25, page, rows=48, answer=answer)


class Profile(NamedTuple):
    """A method over the cells in which it has enough seeds."""

    method: str
    ratios: list[float]
    """Its time by the best of each cell, of several batches the least; infinite: a seed missed the target."""

    @property
    def range(self) -> str:
        """Range of the ratios, and in how many cells a seed missed the target."""
        known = [ratio for ratio in self.ratios if np.isfinite(ratio)]
        missed = len(self.ratios) - len(known)
        if not known:
            return "misses the target with a seed"
        return spread(known) + (f", target missed in {missed}" if missed else "")


def profiles(findings: Findings) -> tuple[list[Profile], list[str]]:
    """Return methods that are judged in every cell, the largest area first, and the names of the others.

    Nothing if it is one method, nor for one cell unless the suite asks.
    """
    decisions, ratios = findings.decisions, dict[str, list[float]]()
    name = Naming(decisions)
    for decision in decisions:
        least: dict[str, float] = {}
        for candidate, ratio in zip(decision.candidates, decision.ratios, strict=True):
            method = name.method(candidate)
            ratios.setdefault(method, [])
            if candidate.state != "too few seeds":
                least[method] = min(ratio, least.get(method, np.inf))
        for method, ratio in least.items():
            ratios[method].append(ratio)
    judged = [Profile(*entry) for entry in ratios.items() if len(entry[1]) == len(decisions)]
    if len(judged) < 2 or (len(decisions) < 2 and "profiles" not in findings.answered_by):
        return [], []
    left_out = [method for method, known in ratios.items() if len(known) < len(decisions)]
    return sorted(judged, key=lambda profile: -area(profile.ratios)), left_out


def _ratio(
    heading: str, of: Callable[[Sequence[float]], Any], importance: Importance = "usual"
) -> Column[Profile]:
    def cell(profile: Profile) -> str:
        ratio = of(profile.ratios)
        return digits(ratio) if np.isfinite(ratio) else NONE

    return Column(heading, cell, importance=importance)


PROFILES_NOTE: Final = (
    f"Ratio: time to the target by the best one of the cell. Area under the performance profile up to {WIDEST:g} "
    "times the best time; 1: first in every cell."
)
PROFILES: Final = (
    Column[Profile]("method", lambda profile: profile.method),
    _ratio("area", area, importance="answer"),
    Column[Profile]("first", lambda profile: str(profile.ratios.count(1))),
    Column[Profile]("missed", lambda profile: str(profile.ratios.count(np.inf))),
    _ratio("least ratio", min),
    _ratio("median ratio", np.median),
    _ratio("largest ratio", max),
)


def profiles_page(findings: Findings) -> Section:
    """Return a row for each method of every cell."""
    rows, _ = profiles(findings)
    return Section("Over all cells", tables=[table(PROFILES, rows, notes=[PROFILES_NOTE])] if rows else [])


def profiles_answer(findings: Findings) -> Answer | None:
    """Return the range over the cells of each method's time by that of the first, and the methods left out."""
    judged, left_out = profiles(findings)
    if not judged and "profiles" not in findings.answered_by:
        return None
    cause = f"Without {', '.join(left_out)}: too few usable seeds, or not in every cell." if left_out else ""
    facts = _judged(findings) | {"ranges": "; ".join(f"{profile.method} {profile.range}" for profile in judged)}
    word = "ranges" if judged else "open"
    return Answer(Verdict(topic="profiles", word=word, cause=cause, facts=facts).sentence)


def profile_charts(findings: Findings) -> list[Lines]:
    """Return the performance profiles, where there are several cells."""
    steps = np.geomspace(1, WIDEST, 40)
    lines = [
        Series(method, [Point(float(t), float(np.mean(np.array(ratios) <= t * (1 + 1e-12)))) for t in steps])
        for method, ratios in profiles(findings)[0]
    ]
    note = "Share of cells in which a method reaches the target within so many times the best time of the cell."
    axis = Axis("time by the first one's", digits, 10)
    return [Lines("Performance profiles", axis, Axis("share of cells"), lines, note)] if lines else []


PROFILES_SECTION: Final = Declaration(
    26, profiles_page, answer=profiles_answer, figures=(profile_charts,), name="profiles"
)
