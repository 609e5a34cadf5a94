"""Page of the claims of the sources: those that fail or are open, then a row for each."""

import csv
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final

from hpcdl.analysis.run.record import Record
from hpcdl.report.formats.cells import NONE, plural
from hpcdl.report.formats.document import Document, Section, headed
from hpcdl.report.formats.tables import Row, Table
from hpcdl.report.formats.verdicts import Verdict
from hpcdl.report.run.claims import (
    ABSENT,
    BY_OTHERS,
    MODEL,
    NO,
    OPEN,
    SOURCES,
    WORST_FIRST,
    YES,
    Clause,
    ClauseDecision,
    Decision,
    Source,
    decide,
)
from hpcdl.suite import PAPERS

MARKED: Final = {
    YES: "\N{CHECK MARK} yes",
    NO: "\N{BALLOT X} no",
    OPEN: "? open",
    ABSENT: "? no run",
    MODEL: "model",
}
"""Verdicts in a table."""
HEADER: Final = (
    "claim",
    "verdict",
    "number",
    "limit",
    "95 %",
    "reason of the limit",
    "by",
    "could fail",
    "earlier",
)
NOTE: Final = (
    "Measurements, here or by others, and trainings in virtual time (losses, accuracies, epochs) decide claims. "
    "If a clause follows from a network model or given compute times, the verdict is model: that is no decision. "
    "A claim is confirmed if the whole 95 % interval of each of its numbers is on the claimed side of the limit. "
    "Intervals over launches are those of the runs' reports; a quotient's contains each quotient of values "
    "inside both, and is wider than in a report. Intervals over seeds are Student's t: of the differences of "
    "equal seeds where both sides of a comparison have them. If a seed misses a target, the interval is the "
    "range over seeds. Shares of seeds have exact bounds. Numbers without randomness have no interval. One seed "
    "decides nothing; nor do times of one launch or one job, or times of ranks that share cores."
)
STANDS: Final = "stands"
"""What changed later in a row of the history of claims: nothing."""
EARLIER: Final = (
    "Verdicts on pages of earlier commits, where the task, the limit, the words or the verdict changed later, or "
    "the claim was removed. Ids are those of the registry that fixes claims before their next runs; the column "
    "earlier has them in short. "
    "reports/oracles/claims_history.py reads them from the history of the tree."
)


def document(
    sources: Sequence[Source],
    records: Mapping[str, Sequence[Record]],
    chosen: Collection[str] = WORST_FIRST,
    folder: Path = Path("FOLDER"),
    *,
    short: bool = False,
) -> Document:
    """Return the page of the decisions on the claims of each source, by the records of each run.

    ``chosen``: verdicts of the claims that it shows. ``folder``: folder of the runs, in commands that make them.
    ``short``: one row per claim, with what fits into 80 columns.
    """
    decided = [[decide(claim, records) for claim in source.claims] for source in sources]
    shown = [[decision for decision in decisions if decision.word in chosen] for decisions in decided]
    every = [decision for decisions in shown for decision in decisions]
    known = [decision for decisions in decided for decision in decisions]
    changed = [decision.verdict for decision in known if decision.is_surprising]
    usual = [decision for decision in every if not decision.is_surprising]
    listed = [_listed(decision) for word in (NO, OPEN) for decision in usual if decision.word == word]
    assumed = []
    for decision in (each for each in every if each.word == MODEL):
        assumptions = dict.fromkeys(clause.clause.assumes for clause in decision.assumed)
        assumed.append(f"{decision.verdict.sentence} It assumes: {'; '.join(assumptions)}.")
    absent = dict.fromkeys(
        clause.clause.run for decision in every for clause in decision.clauses if clause.verdict == ABSENT
    )
    commands = [f"hpcdl run suites/{run}.toml -o {folder}/{run}" for run in absent]
    sections = [
        Section("Failed or open", points=listed),
        Section("Follows from the model", points=assumed),
        Section("No run: commands that make them", points=commands),
        *(_section(source, decisions, short) for source, decisions in zip(sources, shown, strict=True)),
        *([_earlier()] if len(sources) == len(SOURCES) and len(every) == len(known) and not short else []),
    ]
    return headed("hpcdl: claims", [summary(known), *changed], sections, notes=[] if short else [NOTE])


def summary(decisions: Sequence[Decision]) -> Verdict:
    """Return how many claims are decided."""
    words = [decision.word for decision in decisions]
    absent, counted = words.count(ABSENT), {"yes": YES, "no": NO, "open": OPEN, "model": MODEL}
    counts = {name: str(words.count(word)) for name, word in counted.items()}
    return Verdict(
        topic="claims",
        word="decided" if {YES, NO} & {*words} else "nothing decided",
        remedy=f"There is no run for {plural(absent, 'claim')}." if absent else "",
        facts={"claims": plural(len(words), "claim"), **counts},
    )


def _listed(decision: Decision) -> str:
    """Return the sentence of a claim that fails or is open, its limit, and its place in the source."""
    limit = decision.deciding.clause.limit.replace("points", "percentage points") if decision.deciding else NONE
    return f"{decision.verdict.sentence} Claimed number: {limit}. Place in the source: {decision.claim.place}."


def _section(source: Source, decisions: Sequence[Decision], short: bool) -> Section:
    """Return the section of a source: a row for each claim; without claims it is empty."""
    if not decisions:
        return Section(source.title)
    if short:
        rows = [(decision.claim.text, *_rows(decision)[0][1:4]) for decision in decisions]
        return Section(source.title, tables=[Table("", HEADER[:4], rows, 2, answers=["number", "limit"])])
    rows = [row for decision in decisions for row in _rows(decision)]
    table = Table("", HEADER, rows, 2, answers=["number", "limit"])
    return Section(source.title, [f"{source.source}. {summary(decisions).sentence}"], tables=[table])


@cache
def _history() -> list[dict[str, str]]:
    """Return the rows of the history of claims; the last of a clause of today stands."""
    with (PAPERS / "claims_earlier.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _before(clause: Clause) -> str:
    """Return the id of a clause in the registry, and its verdicts under other tasks and limits."""
    rows = _history()
    names = [row["id"] for row in rows if row["changed"] == STANDS and clause.text in row["clause"].split(" | ")]
    past = [
        f"{row['verdict'] or 'on no page'} {row['numbers'].partition(' (')[0]}".strip()
        for row in rows
        if row["id"] in names and row["changed"] != STANDS
    ]
    return f"{', '.join(dict.fromkeys(names))}: {'; '.join(past) or NONE}" if names else NONE


def _earlier() -> Section:
    """Return the section of the verdicts that claims had under other tasks and limits."""
    points = []
    for row in (row for row in _history() if row["changed"] != STANDS):
        head = f"{row['id']}, from {row['date']}: {row['clause'].replace('{}', '...')}"
        verdict = f"{row['verdict'] or NONE}, {row['numbers'] or 'on no page'}"
        points.append(f"{head}. Limit: {row['limit']}. Verdict: {verdict}. Changed then: {row['changed']}.")
    return Section("Earlier verdicts", [EARLIER], points=points)


def _rows(decision: Decision) -> list[Row]:
    """Return rows of :data:`HEADER`: of the claim with the number that decides, and of each of several clauses."""
    claim, deciding, clauses = decision.claim, decision.deciding, decision.clauses
    cells = _cells(deciding)[1:] if deciding else (NONE,) * (len(HEADER) - 2)
    rows = [(f"- {clause.sentence}", *_cells(clause)) for clause in clauses] if len(clauses) > 1 else []
    return [(f"{claim.text} ({claim.place})", MARKED[decision.word], *cells), *rows]


def _cells(decision: ClauseDecision) -> Row:
    """Return cells of :data:`HEADER` but the first."""
    clause, (number, bounds) = decision.clause, decision.here
    by = f"{decision.means} ({'PICO' if clause.run == BY_OTHERS else f'run {clause.run}'})"
    word = decision.verdict if decision.is_decided else MODEL
    why = clause.because or NONE, by, clause.could_fail or NONE
    return MARKED[word], number, clause.limit, bounds, *why, _before(clause)
