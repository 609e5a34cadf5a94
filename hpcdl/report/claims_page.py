"""Page of the claims: counts and a figure, then a section for each source, with a mark for each claim."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from hpcdl.analysis.run.record import Record
from hpcdl.report.claims import ABSENT, FAILS, HOLDS, OPEN, ClauseDecision, Decision, Source, decide
from hpcdl.report.formats.cells import NONE, plural, whole
from hpcdl.report.formats.document import Axis, Bars, Document, Row, Section, Table, headed
from hpcdl.report.verdicts import Verdict

MARKS: Final = {HOLDS: "\N{CHECK MARK}", FAILS: "\N{BALLOT X}", OPEN: "?", ABSENT: "?"}
"""Mark of a verdict, before its words."""
HEADER: Final = ("claim", "verdict", "here", "interval", "decided by", "number", "limit")
NOTE: Final = (
    "A clause holds if the whole interval of its number is on the claimed side of its limits; a claim if all of "
    "its clauses do. Intervals are those of the runs' reports, or Student's t over seeds, of differences by seed "
    "where both sides share some; with a target that a seed misses, the range over seeds; of shares of seeds, "
    "exact bounds. A number without chance has none. One seed, a time of one launch, or one of ranks that share "
    "cores, decides nothing."
)


def decisions(sources: Sequence[Source], records: Mapping[str, Sequence[Record]]) -> list[list[Decision]]:
    """Return the decisions on the claims of each source."""
    return [[decide(claim, records) for claim in source.claims] for source in sources]


def summary(decided: Sequence[Decision]) -> Verdict:
    """Return how many claims are decided."""
    words = [decision.word for decision in decided]
    holds, fails = words.count(HOLDS), words.count(FAILS)
    return Verdict(
        topic="claims",
        word="decided" if holds + fails else "nothing decided",
        facts={
            "decided": str(holds + fails),
            "claims": plural(len(decided), "claim"),
            "counts": f"{holds} hold{'s' * (holds == 1)}, {fails} {'does' if fails == 1 else 'do'} not hold here",
        },
    )


def document(sources: Sequence[Source], by_source: Sequence[Sequence[Decision]]) -> Document:
    """Return the page of the decisions on the claims of each source."""
    every = [decision for decided in by_source for decision in decided]
    otherwise = [decision.verdict for decision in every if decision.is_surprising]
    sections = [_section(*pair) for pair in zip(sources, by_source, strict=True)]
    return headed("hpcdl: claims", [summary(every), *otherwise], [_counts(sources, by_source), *sections])


def _counts(sources: Sequence[Source], by_source: Sequence[Sequence[Decision]]) -> Section:
    """Return the number of decided claims by source."""
    words = [[one.word for one in decided] for decided in by_source]
    parts = {word: [float(each.count(word)) for each in words] for word in (HOLDS, FAILS)}
    titles = [f"{source.title} (of {len(source.claims)})" for source in sources]
    return Section(
        "Claims by source", [NOTE], charts=[Bars("Decided claims", titles, parts, Axis("claims", whole))]
    )


def _section(source: Source, decided: Sequence[Decision]) -> Section:
    rows = [row for decision in decided for row in _rows(decision)]
    open_ones = [f"{one.claim.text}. Undecided: it takes {one.remedy}." for one in decided if one.remedy]
    table = Table("", HEADER, rows, 2, key="verdict")
    return Section(source.title, [f"{source.source}. {summary(decided).sentence}"], open_ones, [table])


def _rows(decision: Decision) -> Iterator[Row]:
    """Yield the row of a claim; of several clauses also a row for each."""
    claim, clauses = decision.claim, decision.clauses
    text = f"{claim.text} ({claim.place})"
    if len(clauses) == 1:
        yield text, *_cells(clauses[0])
        return
    yield text, marked(decision.word), *[NONE] * 5
    for clause in clauses:
        yield f"- {clause.clause.text}", *_cells(clause)


def _cells(decision: ClauseDecision) -> Row:
    clause = decision.clause
    limits = [
        f"{sign} {limit:g}" for sign, limit in ((">", clause.above), ("<", clause.below)) if limit is not None
    ]
    limit = ", ".join(limits) + (f": {clause.because}" if clause.because else "")
    return marked(decision.verdict), *decision.here, f"{decision.means} (run {clause.run})", clause.number, limit


def marked(verdict: str) -> str:
    """Return the words of a verdict behind its mark."""
    return f"{MARKS[verdict]} {verdict}"
