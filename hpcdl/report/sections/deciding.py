"""Which method reaches a target first: in each configuration, with its searches for settings, and over all.

Over all configurations by performance profiles (Dolan & More 2002): time of each method / the first one's.
"""

import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from hpcdl.analysis.run.deciding import MIN_SEEDS, WIDEST, Candidate, Decision, area
from hpcdl.analysis.run.record import Record, group_by_key
from hpcdl.report.formats.cells import NONE, Number, digits, interval, percent, plural, seconds
from hpcdl.report.formats.document import Axis, Lines, Point, Section, Series
from hpcdl.report.formats.tables import Column, Table, table
from hpcdl.report.run.declaration import Answer, Declaration, one_table
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.names import (
    COMMA,
    Names,
    capital,
    in_words,
    link_title,
    network_name,
    several,
    slowed,
    title_of,
)

VERDICTS: Final = {"undecided": "others may be first", "not decided": "too few seeds"}
"""Verdicts that the table states in other words."""
NOTE: Final = (
    "Time to the target: geometric mean over seeds. Budget: the shortest training of a method that missed the "
    "target with some seeds; later times count as missed. Decided: each other method needs at least 5 % more "
    "time, by a likelihood-ratio test adjusted for all comparisons. The test uses an interval for each time: it "
    "lies between two evaluations, or, if the training missed the target, after its end. 95 %: "
    "interval of second / first from this test. Alone: no other method reached the target. Others may be first: a "
    "method that missed the target has too few seeds or trained too briefly. Too few seeds: a method has fewer "
    f"than {MIN_SEEDS} usable seeds."
)


class Naming:
    """Names of the methods and configurations of a run."""

    def __init__(self, decisions: Sequence[Decision]) -> None:
        every = [each for decision in decisions for each in decision.candidates]
        self._names: Final = Names(_untuned(each.record) for each in every)
        words = [set(_words(decision)) for decision in decisions]
        self._shared: Final = set.intersection(*words) if len(words) > 1 else set[str]()
        self._batches: Final = group_by_key((self.method(each), each.record.global_batch) for each in every)
        batches = ({each.record.global_batch for each in decision.candidates} for decision in decisions)
        self._by_batch: Final = any(len(sizes) > 1 for sizes in batches)

    def method(self, candidate: Candidate) -> str:
        """Return the name of a method, the same in all configurations."""
        return self._names(_untuned(candidate.record))

    def __call__(self, candidate: Candidate) -> str:
        """Return the name of a method, with its batch where methods of a configuration differ in it."""
        batch = f", batch {candidate.record.global_batch}" if self._by_batch else ""
        return f"{self.method(candidate)}{batch}"

    def words(self, candidate: Candidate) -> str:
        """Return the name of a method for a sentence, with its batch where it has several."""
        name, record = self.method(candidate), candidate.record
        alone = len(self._batches) < 2
        words = title_of(record.strategy, record.system or "") if alone else in_words(name, record)
        return words + (f" at batch {record.global_batch}" if len({*self._batches[name]}) > 1 else "")

    def differing(self, decision: Decision) -> list[str]:
        """Return the conditions that tell a configuration from the others."""
        return [word for word in _words(decision) if word not in self._shared]

    def configuration(self, decision: Decision) -> str:
        """Return these conditions as a text."""
        return ", ".join(self.differing(decision)) or "plain"


def _where(words: Sequence[str]) -> str:
    """Return conditions as the end of a sentence: " on 100 Mbit/s Ethernet with rank 1 at 1/2 of its speed"."""
    text = ""
    for word in (word for word in words if "FLOP/s" not in word and "per node" not in word):
        link, model = link_title(word), network_name(word)
        is_place = link != word or re.fullmatch(r"\d+ ranks?", word)
        other = f" for {model}" if model != word else f" with {slowed(word)}"
        text += f" on {link}" if is_place else other
    return text or " in the plain configuration"


def _untuned(record: Record) -> Record:
    """Return the case without a learning rate that a search replaced."""
    return record.but(learning_rate=None) if record.tuned else record


def _words(decision: Decision) -> list[str]:
    record = decision.first.record
    conditions = ", ".join(decision.conditions).removeprefix("simulated on ")
    problem = (str(name).partition("(")[0] for name in (record.model, record.dataset))
    return [*problem, plural(record.ranks, "rank"), *filter(None, COMMA.split(conditions))]


def page(findings: Findings) -> Section:
    """Return the configurations, and the methods that missed seeds."""
    decisions, title = findings.decisions, "Time to the target"
    if not decisions:
        return Section(title)
    name = Naming(decisions)
    tables = [table(_configurations(name), decisions, notes=[NOTE], left=2)]
    judged = [(decision, candidate) for decision in decisions for candidate in decision.candidates]
    if missed := [pair for pair in judged if pair[1].state != "reached" or pair[1].lost]:
        tables.append(table(_missed(name), missed, "Missed seeds, and methods left out", left=2))
    return Section(title, tables=tables)


def _configurations(name: Naming) -> list[Column[Decision]]:
    def second(decision: Decision, shown: str) -> str:
        return shown if decision.candidates[1].state != "not reached" and decision.lead.value > 0 else NONE

    return [
        Column("configuration", name.configuration),
        Column("first", lambda each: name(each.first) if each.first.reached else NONE, importance="answer"),
        Column("time", lambda each: seconds(each.time), importance="answer"),
        Column("epochs", lambda each: NONE if each.time is None else digits(each.first.epochs)),
        Column("second", lambda each: second(each, name(each.candidates[1]))),
        Column("second / first", lambda each: second(each, digits(each.lead.value)), importance="answer"),
        Column("95 %", lambda each: _later(each) if each.lead.low > 0 else NONE, importance="answer"),
        Column("tied with", lambda each: several([*map(name, each.rivals)])),
        Column("budget", lambda each: _finite(each.budget, seconds), importance="detail"),
        Column("verdict", lambda each: VERDICTS.get(each.verdict, each.verdict), importance="answer"),
    ]


def _later(decision: Decision) -> str:
    """Return the interval by which the second is later; without an upper bound its least one."""
    _, low, high = decision.lead
    return interval(low, high) if np.isfinite(high) else f"at least {digits(low)}"


COMPARED: Final = {
    "too few seeds": f"no: fewer than {MIN_SEEDS} usable seeds",
    "not reached": "yes, counted as later than {}",
    "some missed": "yes, missed seeds counted as later than their training",
    "reached": "yes",
}
"""Whether and how a method is compared, by its state; in braces its longest training."""


def _missed(name: Naming) -> list[Column[tuple[Decision, Candidate]]]:
    def lost(cause: str) -> Column[tuple[Decision, Candidate]]:
        return Column(cause, lambda pair: str(pair[1].lost[cause] or NONE))

    return [
        Column("configuration", lambda pair: name.configuration(pair[0])),
        Column("method", lambda pair: name(pair[1])),
        Column("reached", lambda pair: str(pair[1].reached)),
        Column("missed", lambda pair: str(pair[1].missed or NONE)),
        *map(lost, ("disturbed", "failed", "not evaluated")),
        Column(
            "compared", lambda pair: COMPARED[pair[1].state].format(seconds(pair[1].training)), importance="answer"
        ),
    ]


def _sentence(name: Naming, decision: Decision, where: str) -> str:
    """Return the verdict on a configuration."""
    first, second, *_ = decision.candidates
    method, seeds, time = name.words(first), plural(len(first.seconds), "seed"), seconds(decision.time)
    rivals = several([*map(name.words, decision.unfinished or decision.rivals)])
    short = several([*map(name.words, decision.open)])
    lead = f"{name.words(second)} takes {digits(decision.lead.value)} ({_later(decision)}) times as long"
    # a time would be that of its budget, where seeds missed it
    reached = f"with {first.reached} of {seeds}" if first.missed else f"in {time} with {seeds}"
    doubtful = f"{method} reaches the target {reached}; with more seeds or training {rivals} may be first"
    slow = [each for each in decision.candidates[1:] if each not in decision.rivals and not each.missed]
    last = max(slow, key=Candidate.mean, default=first)
    slower = f"; {name.words(last)} takes {digits(last.mean() / first.mean())} times as long" if slow else ""
    close = f"{method}, in {time} with {seeds}, or {rivals}{slower}"
    return {
        "decided": f"{capital(method)} reaches the target first, in {time}{where}; {lead}.",
        "alone": f"Only {method} reaches the target{where}, {reached}.",
        "tied": f"Not decided{where} which is first: {close}.",
        "undecided": f"Not decided{where}: {doubtful}.",
        "not reached": f"No method reaches the target{where}.",
        "not decided": f"Not decided{where}: there are fewer than {MIN_SEEDS} usable seeds of {short}.",
    }[decision.verdict]


def answer(findings: Findings) -> Answer | None:
    """Return which methods win, in which configurations, and by how much; then the verdict on each."""
    decisions, verdicts = findings.decisions, {decision.verdict for decision in findings.decisions}
    if verdicts <= ({"not decided"} if "deciding" not in findings.answered_by else set()):
        return None
    name, is_one = Naming(decisions), len(decisions) == 1
    places = ["" if is_one else _where(name.differing(decision)) for decision in decisions]
    lines = [_sentence(name, *pair) for pair in zip(decisions, places, strict=True)]
    basis = [record for record in findings.records if record.target_accuracy is not None]
    return Answer(lines[0], basis=basis) if is_one else Answer(_headline(name, decisions), lines, basis)


def _headline(name: Naming, decisions: Sequence[Decision]) -> str:
    """Return the most frequent winner, where it wins and by how much, and where another wins or nothing does."""
    groups = group_by_key((name.words(each.first) if each.is_won else "", each) for each in decisions)
    undecided = groups.pop("", [])
    if not groups:
        count = plural(len(decisions), "configuration")
        return f"Not decided: in each of {count} another method may reach the target as fast as the fastest one."
    winner, *others = sorted(groups, key=lambda method: -len(groups[method]))
    won = groups[winner]
    text = f"{capital(winner)} reaches the target first{_among(name, won, decisions)}"
    least = min(won, key=lambda decision: decision.lead.value)
    if least.verdict == "decided":
        text += f" (the next takes {digits(least.lead.value)} times as long, {_later(least)})"
    text += "".join(f", {other}{_among(name, groups[other], decisions)}" for other in others[:1])
    return f"{text}{f'; not decided{_among(name, undecided, decisions)}' if undecided else ''}."


def _among(name: Naming, some: Sequence[Decision], every: Sequence[Decision]) -> str:
    """Return the conditions that some configurations alone have in common, else their number."""
    others = [each for each in every if each not in some]
    common = [word for word in name.differing(some[0]) if all(word in name.differing(each) for each in some)]
    own = [word for word in common if not any(word in name.differing(each) for each in others)]
    if others and (own or not name.differing(some[0])):
        return _where(own)
    if others:
        return f" in {len(some)} of {len(every)} configurations"
    words = [word for each in every for word in name.differing(each)]
    noun = "on {} networks" if all(word != link_title(word) for word in words) else "in {} configurations"
    return f" {noun.format('both' if len(every) == 2 else f'all {len(every)}')}"


SECTION: Final = Declaration(24, page, rows=48, answer=answer)


def tuning_page(findings: Findings) -> Section:
    """Return a row for each search for settings; cases that differ in seed share it."""
    tuned = [_untuned(record) for record in findings.records if record.tuned]
    name, header = Names(tuned), ("model", "ranks", "method", "found", "edge", "accuracies", "trials", "images")
    found = (Record.tuned, Record.tuning_edge, Record.tuning_trials, Record.tuning, Record.tuning_images)
    rows = {
        (str(case.model), str(case.ranks), name(case), *(str(quantity.of(case) or NONE) for quantity in found))
        for case in tuned
    }
    note = "Accuracies: validation images, at the end. Edge: of the grid. Images: training images of all trials."
    return Section("Tuning", tables=[Table("", header, sorted(rows), 6, [note])] if rows else [])


TUNING: Final = Declaration(25, tuning_page, rows=48, name="tuning")


class Profile(NamedTuple):
    """A method over the configurations in which it has enough seeds."""

    method: str
    ratios: list[float]
    """Time / the best of each configuration, of several batches the least; infinite: a seed missed the target."""


def profiles(findings: Findings) -> tuple[list[Profile], list[str]]:
    """Return methods that are judged in every configuration, the largest area first, and the names of the others.

    Nothing if it is one method, nor for one configuration unless the suite asks.
    """
    decisions, ratios = findings.decisions, dict[str, list[float]]()
    name = Naming(decisions)
    for decision in decisions:
        pairs = zip(decision.candidates, decision.ratios, strict=True)
        by_method = group_by_key((name.method(candidate), (candidate, ratio)) for candidate, ratio in pairs)
        for method, of_method in by_method.items():
            known = [ratio for candidate, ratio in of_method if candidate.state != "too few seeds"]
            ratios.setdefault(method, []).extend([min(known)] if known else [])
    judged = [Profile(*entry) for entry in ratios.items() if len(entry[1]) == len(decisions)]
    if len(judged) < 2 or (len(decisions) < 2 and "profiles" not in findings.answered_by):
        return [], []
    left_out = [method for method, known in ratios.items() if len(known) < len(decisions)]
    return sorted(judged, key=lambda profile: -area(profile.ratios)), left_out


def _finite(value: float, shown: Callable[[Number], str] = digits) -> str:
    return shown(value) if np.isfinite(value) else NONE


PROFILES_NOTE: Final = (
    "Least, median, largest: time to the target / shortest time of the same configuration. Area: area under the "
    f"performance profile up to {WIDEST:g} times the shortest time; 1: the method reaches the target first in "
    "every configuration."
)
PROFILES: Final = (
    Column[Profile]("method", lambda profile: profile.method),
    Column[Profile]("area", lambda profile: _finite(area(profile.ratios)), importance="answer"),
    Column[Profile]("first", lambda profile: str(profile.ratios.count(1))),
    Column[Profile]("missed", lambda profile: str(profile.ratios.count(np.inf))),
    Column[Profile]("least", lambda profile: _finite(min(profile.ratios))),
    Column[Profile]("median", lambda profile: _finite(float(np.median(profile.ratios)))),
    Column[Profile]("largest", lambda profile: _finite(max(profile.ratios))),
)


def profiles_page(findings: Findings) -> Section:
    """Return a row for each method of every configuration."""
    return one_table("Over all configurations", PROFILES, profiles(findings)[0], PROFILES_NOTE)


def profiles_answer(findings: Findings) -> Answer | None:
    """Return how many times as long as the first methods of each configuration take at most, and the others."""
    judged, left_out = profiles(findings)
    if not judged and "profiles" not in findings.answered_by:
        return None
    name, decisions = Naming(findings.decisions), findings.decisions
    every = [each for decision in decisions for each in decision.candidates]
    words = {name.method(each): in_words(name.method(each), each.record) for each in every}
    basis = [record for record in findings.records if record.target_accuracy is not None]
    if not judged:
        headline = f"Not decided: fewer than two methods have {MIN_SEEDS} usable seeds in every configuration."
        return Answer(headline, basis=basis)
    most = {words[profile.method]: max(profile.ratios) for profile in judged}
    reached = [method for method, ratio in most.items() if np.isfinite(ratio)]
    missed = [method for method in most if method not in reached]
    worst = sorted(reached[1:], key=lambda method: -most[method])[:2]
    slower = " and ".join(f"{method} up to {digits(most[method])}" for method in worst)
    slower = slower and f"; {slower.replace(' up to', ' takes up to', 1)} times as long"
    lines = []
    for best in reached[:1]:
        takes = "is" if most[best] == 1 else f"takes at most {digits(most[best])} times as long as"
        configurations = plural(len(decisions), "configuration")
        lines.append(f"{capital(best)} {takes} the fastest method in each of {configurations}{slower}.")
    lines += [f"With {several(missed)} at least one seed missed the target in a configuration."] if missed else []
    lines += [f"Not compared, with too few seeds or configurations: {several(left_out)}."] if left_out else []
    return Answer(lines[0], lines[1:], basis)


def profile_charts(findings: Findings) -> list[Lines]:
    """Return the performance profiles, where there are several configurations: steps at the ratios."""
    lines = []
    for method, ratios in profiles(findings)[0]:
        known = sorted(ratio for ratio in ratios if ratio <= WIDEST)
        shares = {ratio: (number + 1) / len(ratios) for number, ratio in enumerate(known)}
        points = {1.0: 0.0, **shares, WIDEST: max(shares.values(), default=0.0)}
        lines.append(Series(method, [Point(*point) for point in points.items()], steps=True))
    note = "Share of configurations in which a method reaches the target within so many times the best time."
    axes = Axis("time / best time", digits, 10), Axis("share of configurations", percent)
    return [Lines("Performance profiles", *axes, lines, note)] if lines else []


OVERALL: Final = Declaration(26, profiles_page, answer=profiles_answer, figures=(profile_charts,), name="profiles")
