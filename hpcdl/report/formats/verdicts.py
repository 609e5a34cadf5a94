"""Verdicts: typed answers to questions, and the one table of the sentences that they print.

A verdict is made once, of numbers. Terminal, page, Markdown, JSON, JUnit and exit code are made of the object, so
that they cannot disagree. Its sentence is a row of ``sentences.toml`` beside this file, by topic and word: a
format string with the case and the ``facts`` of the verdict. A sentence without one of its facts raises.

To say something new, add a row, choose it where the numbers are, and let the test of the topic make it appear.
"""

import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from hpcdl.analysis.run.record import Mark
from hpcdl.analysis.statistics.estimates import NOTHING, Interval
from hpcdl.exit_codes import FAILED, INCONCLUSIVE, OK


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


CODES: Final = {"ok": OK, "failed": FAILED, "inconclusive": INCONCLUSIVE}
_TABLE: Final = tomllib.loads(Path(__file__).with_name("sentences.toml").read_text(encoding="utf-8"))
SENTENCES: Final = tuple(
    Sentence(topic, word, row["when"], row["says"], CODES[row.get("code", "ok")], row.get("good", False))
    for topic, rows in _TABLE.items()
    for word, row in rows.items()
)
_ROWS: Final = {(row.topic, row.word): row for row in SENTENCES}


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
    tests: frozenset[str] = frozenset()
    """Test cases of JUnit XML that it decides, where one verdict is on several."""

    @property
    def row(self) -> Sentence:
        """Row of the table. Raises KeyError for a topic or word without one."""
        return _ROWS[self.topic, self.word]

    @property
    def headline(self) -> str:
        """Sentence of the row, with marks. Raises KeyError without a fact that the row needs."""
        text = self.row.says.format(case=self.case, **self.facts)
        if self.marks:
            text = f"{text.removesuffix('.')} ({', '.join(self.marks)})."
        return text

    @property
    def sentence(self) -> str:
        """The headline, cause and remedy."""
        return " ".join(filter(None, (self.headline, self.cause, self.remedy)))

    def record(self) -> dict[str, object]:
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
