"""Verdicts: typed answers to questions, and the one table of the sentences that they print.

A verdict is made once, of numbers. Terminal, page, Markdown, JSON, JUnit and exit code are made of the object, so
that they cannot disagree. Its sentence is a row of :data:`SENTENCES`, by topic and word: a format string with the
case and the ``facts`` of the verdict. A sentence without one of its facts raises.

To say something new, add a row, choose it where the numbers are, and let the test of the topic make it appear.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from hpcdl.analysis.statistics.estimates import NOTHING, Interval
from hpcdl.exit_codes import FAILED, INCONCLUSIVE, OK

Mark = Literal["disturbed", "oversubscribed", "emulated", "simulated", "extrapolated", "undetermined", "diverged"]
"""Reservation that travels with a number."""


class Sentence(NamedTuple):
    """A row of the table."""

    topic: str
    word: str
    """The verdict in one or two words; JSON has it, and tables of many verdicts."""
    when: str
    """Condition, in words."""
    says: str
    """Format string of a whole sentence."""
    code: int = OK
    """Exit code of a command whose only verdict is this one."""
    good: bool = False
    """True if a page may show it in green."""


SENTENCES: Final[tuple[Sentence, ...]] = (
    Sentence(
        "scaling",
        "none judged",
        "no method of one problem has a verdict",
        "Efficiency is {range} at {where}, without a verdict on near-linear scaling (>= {limit}): {states}.",
    ),
    Sentence(
        "scaling",
        "counted",
        "a method of one problem has a verdict",
        "{methods} near-linear at {where} (efficiency >= {limit}).",
    ),
    Sentence(
        "scaling",
        "near-linear",
        "a method of one of several problems is near-linear beyond the base",
        "{case}: near-linear {ranks} with {method} (efficiency {efficiency}).",
        good=True,
    ),
    Sentence(
        "scaling",
        "not near-linear",
        "most methods of one of several problems are not near-linear",
        "{case}: not near-linear at {ranks} ({range}).",
    ),
    Sentence("scaling", "inconclusive", "neither of these", "{case}: no verdict at {ranks} ({range})."),
    Sentence(
        "scaling",
        "soonest",
        "the target is reached sooner on more ranks",
        "{of}{target} soonest on {ranks}: {faster} times as fast as on {base} (speed-up of steps: {speedup}).",
    ),
    Sentence(
        "scaling",
        "soonest on the base",
        "the target is not reached sooner on more ranks",
        "{of}{target} soonest on {ranks}.",
    ),
    Sentence(
        "scaling",
        "exposed",
        "several methods have exposed communication",
        "{of}Exposed communication at {ranks}: least {least}, most {most}.",
    ),
    Sentence("claims", "holds", "each clause holds", "{case}: holds; {numbers}.", good=True),
    Sentence("claims", "does not hold here", "a clause does not hold", "{case}: does not hold here; {numbers}."),
    Sentence("claims", "undecided", "a clause is open, none fails", "{case}: undecided; {numbers}."),
    Sentence("claims", "no run", "no clause has a run", "{case}: no run decides it."),
    Sentence(
        "claims",
        "otherwise",
        "a decided claim is the opposite of what it says of these runs",
        "OTHERWISE THAN BEFORE: {case}: {verdict}; {numbers}.",
        FAILED,
    ),
    Sentence("claims", "decided", "a claim is decided", "{decided} of {claims} are decided: {counts}."),
    Sentence("claims", "nothing decided", "no claim is decided", "None of {claims} is decided.", INCONCLUSIVE),
    Sentence(
        "batches",
        "half",
        "the efficiency in steps falls to a half between two batches",
        "{case}: larger batches save steps, with at least half of perfect scaling, up to "
        "{batch} images ({bounds}).",
    ),
    Sentence(
        "batches",
        "missed",
        "the next batch misses the target with most seeds",
        "{case}: larger batches save steps, with at least half of perfect scaling, up to "
        "{batch} images; the next batch, {next}, misses the target.",
    ),
    Sentence(
        "batches",
        "all",
        "the efficiency in steps stays above a half",
        "{case}: larger batches save steps, with at least half of perfect scaling, up to "
        "{batch} images, the largest batch (bound: {bounds}).",
        good=True,
    ),
    Sentence("batches", "none", "no batch reaches the target", "{case}: no batch reaches the target."),
    Sentence(
        "batches",
        "methods",
        "several methods reach the target",
        "Larger batches save steps, with at least half of perfect scaling, up to {most}, and up to {least}.",
    ),
    Sentence(
        "batches",
        "noise agrees",
        "noise scale and critical batch are within the factor",
        "The noise scale is within a factor of {factor} of that batch for {case}.",
    ),
    Sentence(
        "batches",
        "noise differs",
        "noise scale and critical batch are not within the factor",
        "The noise scale is not within a factor of {factor} of that batch for {case}.",
    ),
    Sentence("compare", "failed", "a launch has no correct result", "{case} failed: {reason}.", FAILED),
    Sentence(
        "compare",
        "regressed",
        "adjusted p < .05, slower by more than --min-effect",
        "{case}: {measure} takes {times} as long ({bounds}; adjusted p = {p}).",
        FAILED,
    ),
    Sentence(
        "compare",
        "regressed by shares",
        "adjusted p of Fisher's test < .05",
        "{case}: more slow launches of {measure} (adjusted p = {p}).",
        FAILED,
    ),
    Sentence(
        "compare",
        "missing",
        "a launch lacks the measure or has other settings",
        "{case}: {measure} is missing: {reason}.",
        FAILED,
    ),
    Sentence(
        "compare",
        "accepted",
        "regressed, and in the file of --accept",
        "{case}: {measure}, {times} as long, is accepted.",
    ),
    Sentence(
        "compare",
        "inconclusive",
        "none of the others",
        "{case}: {measure} is undecided, {times} as long ({bounds}).",
        INCONCLUSIVE,
    ),
    Sentence(
        "compare",
        "not compared",
        "a side has too few launches",
        "{case}: {measure} is undecided: {reason}.",
        INCONCLUSIVE,
    ),
    Sentence(
        "compare",
        "improved",
        "adjusted p < .05, faster by more than --min-effect",
        "{case}: {measure} is faster, {times} as long ({bounds}; adjusted p = {p}).",
        good=True,
    ),
    Sentence(
        "compare",
        "unchanged",
        "interval within --min-effect, similar shares",
        "{case}: {measure} is unchanged, {times} as long ({bounds}).",
        good=True,
    ),
    Sentence("compare", "new", "not in the baseline", "{case} is new."),
    Sentence(
        "comparison",
        "regressed",
        "one regressed, failed or is missing",
        "REGRESSED: {worst} {measures}: {counts}.",
        FAILED,
    ),
    Sentence(
        "comparison",
        "inconclusive",
        "half or more are",
        "INCONCLUSIVE: {worst} {measures}: {counts}.",
        INCONCLUSIVE,
    ),
    Sentence(
        "comparison",
        "improved",
        "one improved, most are decided",
        "IMPROVED: {worst} {measures}: {counts}.",
        good=True,
    ),
    Sentence(
        "comparison",
        "unchanged",
        "most are decided, none changed",
        "UNCHANGED: {worst} {measures}: {counts}.",
        good=True,
    ),
    Sentence(
        "deciding",
        "decided",
        "each other method that reached the target is later by 5 % or more, and by the adjusted test",
        "{case}: {first} reaches the target first, in {time} ({seeds}); next is {others}, which takes {later} "
        "times as long.",
        good=True,
    ),
    Sentence(
        "deciding",
        "alone",
        "no other method reached the target with a seed",
        "{case}: only {first} reaches the target, in {time} ({seeds}).",
        good=True,
    ),
    Sentence(
        "deciding",
        "tied",
        "the test does not tell a method from the first, or it is later by less than 5 %",
        "{case}: {first} ({time}, {seeds}) is tied with {others}.",
    ),
    Sentence("deciding", "not reached", "no method reached the target", "{case}: no method reaches the target."),
    Sentence(
        "deciding",
        "not decided",
        "a method has fewer than three usable seeds",
        "{case}: not decided, with fewer than {least} usable seeds of {others}.",
    ),
    Sentence(
        "deciding",
        "first in cells",
        "one of several cells is decided",
        "Time to the target in {cells}: {counts}; first in decided cells: {winners}.",
        good=True,
    ),
    Sentence("deciding", "no first", "none of several is decided", "Time to the target in {cells}: {counts}."),
    Sentence(
        "profiles",
        "ranges",
        "several methods are judged in each cell",
        "Times to the target by that of the first method, in {cells}: {ranges} ({basis}).",
    ),
    Sentence(
        "profiles",
        "open",
        "fewer than two methods have enough usable seeds",
        "Times to the target can't be compared: fewer than two methods have three usable seeds ({basis}).",
    ),
    Sentence(
        "history",
        "regressed",
        "a change for the worse is neither repaired nor accepted",
        "REGRESSED: {case} {most} since {date} ({run}); {measures}, median {median}. Found {found}.",
        FAILED,
    ),
    Sentence(
        "history",
        "repaired",
        "a change for the worse whose measures are back at their level, or ended",
        "{case} was {most} since {date} ({run}); {measures}, median {median}.",
    ),
    Sentence(
        "history",
        "accepted",
        "an entry covers the size of each unrepaired change",
        "ACCEPTED until {until}: {case} {most} since {date} ({run}); {measures}, median {median}: {reason}.",
    ),
    Sentence(
        "history",
        "two states",
        "the newest run shows that measures go back and forth between two levels",
        "TWO STATES: {case} {most} since {date} ({run}), at a level that it had before; {measures}, median "
        "{median}. Later changes between the two are not reported.",
        FAILED,
    ),
    Sentence(
        "history",
        "known states",
        "a run before the newest showed two states",
        "Two states since {date}: {case} {most}; {measures}, median {median}. Changes between the two are not "
        "reported.",
    ),
    Sentence(
        "history",
        "improved",
        "measures are faster",
        "IMPROVED: {case} {most} since {date} ({run}); {measures}, median {median}. Found {found}.",
        good=True,
    ),
    Sentence(
        "history",
        "restored",
        "measures are back at their level",
        "RESTORED: {case} {most} since {date} ({run}); {measures}, median {median}. Found {found}.",
        good=True,
    ),
    Sentence(
        "history",
        "unstable start",
        "measures changed before they had a level, and have too few runs since",
        "UNSTABLE START: {case} {most} since {date} ({run}), before there was a level to compare with; "
        "{measures}. It can be judged {when}.",
        INCONCLUSIVE,
    ),
    Sentence(
        "history",
        "start",
        "measures changed before they had a level, and have one since",
        "{case} {most} since {date}, before there was a level to compare with; {measures}.",
    ),
    Sentence(
        "history",
        "slow",
        "a host or link is slow, of no regression and not accepted",
        "REGRESSED: {slow}.",
        FAILED,
    ),
    Sentence(
        "history",
        "missing",
        "the newest run lacks a case, or a regressed case left the suite",
        "MISSING in the newest run: {case}: {reason}.",
        FAILED,
    ),
    Sentence(
        "history",
        "stale",
        "the newest run is older than --stale",
        "STALE: the newest run began at {date}, {hours} hours ago.",
        INCONCLUSIVE,
    ),
    Sentence(
        "history",
        "disturbed",
        "cases of the newest run are disturbed",
        "DISTURBED in the newest run: {cases}, not judged: {case}: {reason}.",
    ),
    Sentence(
        "history",
        "departing",
        "the newest one or two values are far above all before",
        "NOT JUDGED YET: {case} is {change} in the newest runs alone{others}. It can be judged {when}.",
        INCONCLUSIVE,
    ),
    Sentence(
        "history",
        "short",
        "some measures have too few runs",
        "NOT JUDGED YET: {measures} with fewer than {least} runs. All can be judged {when}.",
    ),
    Sentence(
        "history",
        "too few runs",
        "no measure of the newest run has enough runs",
        "TOO FEW RUNS: no measure of the newest has {least} runs. It can be judged {when}.",
        INCONCLUSIVE,
    ),
    Sentence("history", "no runs", "the folder holds no run", "TOO FEW RUNS: {folder} holds none.", INCONCLUSIVE),
    Sentence("history", "not read", "a folder cannot be read", "NOT READ: {folder}.", INCONCLUSIVE),
    Sentence(
        "history",
        "fine",
        "nothing else is to be said of the judged measures",
        "FINE: no change of {least} or more for the worse is open in {measures}.",
        good=True,
    ),
)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Answer to one question about one case."""

    topic: str
    word: str
    question: str = ""
    case: str = ""
    size: Interval = NOTHING
    """What the sentence measures, with its 95 % interval: a ratio of times, an efficiency, a batch."""
    launches: Sequence[int] = ()
    """Launches (or jobs, or seeds) that the size rests on, of each side that is compared."""
    marks: Sequence[Mark] = ()
    cause: str = ""
    """Sentence on the likely cause; empty if none is known."""
    remedy: str = ""
    """Sentence on what would decide an open question, or repair a defect."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """Further texts of the sentence, by the names in the row."""

    @property
    def row(self) -> Sentence:
        """Row of the table. Raises KeyError for a topic or word without one."""
        return _ROWS[self.topic, self.word]

    @property
    def sentence(self) -> str:
        """Sentence of the row, marks, cause and remedy. Raises KeyError without a fact that the row needs."""
        text = self.row.says.format(case=self.case, **self.facts)
        if self.marks:
            text = f"{text.removesuffix('.')} ({', '.join(self.marks)})."
        return " ".join(filter(None, (text, self.cause, self.remedy)))

    def record(self) -> dict[str, Any]:
        """Return the object for JSON; null for unknown numbers."""
        size = {
            name: value if math.isfinite(value) else None
            for name, value in zip(("size", "size_low", "size_high"), self.size, strict=True)
        }
        return {
            "question": self.question or None,
            "verdict": self.word,
            "case": self.case or None,
            **size,
            "launches": list(self.launches),
            "marks": list(self.marks),
            "cause": self.cause or None,
            "remedy": self.remedy or None,
            "sentence": self.sentence,
        }


def exit_code(verdicts: Iterable[Verdict]) -> int:
    """Return the exit code of several verdicts: a failure, else an open question, else 0."""
    codes = {verdict.row.code for verdict in verdicts}
    return next((code for code in (FAILED, INCONCLUSIVE) if code in codes), OK)


def words(topic: str) -> set[str]:
    """Return the words of a topic, each of which a test makes appear."""
    return {row.word for row in SENTENCES if row.topic == topic}


_ROWS: Final = {(row.topic, row.word): row for row in SENTENCES}
