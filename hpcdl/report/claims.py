"""Page of the claims of the sources: counts, those that are refuted or open, a row for each, earlier verdicts."""

import csv
import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Final

from hpcdl.analysis.run.record import Record
from hpcdl.report.formats.cells import NONE, plural
from hpcdl.report.formats.document import Document, Section, headed
from hpcdl.report.formats.tables import Row, Table
from hpcdl.report.formats.verdicts import Verdict
from hpcdl.report.run.claims import (
    ABSENT,
    NO,
    OPEN,
    SOURCES,
    WORST_FIRST,
    YES,
    Claim,
    Decision,
    Found,
    Kind,
    Part,
    Source,
    decide,
)
from hpcdl.suite import PAPERS
from hpcdl.trace.files import JsonObject

MARKED: Final = {
    YES: "\N{CHECK MARK} confirmed",
    NO: "\N{BALLOT X} refuted",
    OPEN: "? open",
    ABSENT: "? no run",
}
"""Verdicts in a table."""
HEADER: Final = ("claim", "kind", "verdict", "number", "limit, and why", "n", "refuted if", "report", "earlier")
NOTE: Final = (
    "The claims were registered before the runs: `hpcdl/papers/registry.md` has the sentence, task and limit of "
    "each claim, and its number of seeds or launches. If the source states no limit, the registry chooses one. A "
    "claim has one of four kinds. Computed: ranks compute, with a core each. Messages: ranks sleep instead of "
    "computing; such runs decide about messages and waiting only. Trained in virtual time: such runs decide about "
    "accuracy, epochs and bytes, never about seconds. Measured by others: published times, job by job. A claim "
    "may have several numbers. It is confirmed if the interval of each number lies within its limit, and refuted "
    "if the whole interval of one number lies beyond it; for a refutation by one of k numbers the error of its "
    "interval is divided by k. Intervals are Student's t intervals. Those over launches are at 95 %. Those over "
    "trainings are at 97.5 %, as trainings may be tested twice, after 5 and after 10 seeds; they are paired by "
    "seed. Shares have exact intervals. A training that diverged counts as 10 % accuracy and infinitely many "
    "epochs; then each seed has one vote, and 5 of 5, 9 of 10 or 10 of 12 equal votes decide. Of about 80 "
    "verdicts up to one in twenty may be wrong by chance."
)
MAKE: Final = "Missing runs, which `python reports/make.py measure FOLDER NAME` makes"
STANDS: Final = "stands"
"""What changed later in a row of the history of claims: nothing."""
EARLIER: Final = (
    "Verdicts on pages of earlier commits, where the task, the limit, the words or the verdict changed later, or "
    "the claim was removed. The column earlier has them in short. "
    "reports/oracles/claims_history.py reads them from the history of the tree."
)


def document(
    sources: Sequence[Source],
    records: Mapping[str, Sequence[Record]],
    chosen: Collection[str] = WORST_FIRST,
    *,
    short: bool = False,
) -> Document:
    """Return the page of the decisions on the claims of each source, by the records of each run.

    ``chosen``: verdicts of the parts that it shows. ``short``: one row per part, with what fits into 80 columns.
    """
    decided = [[decide(claim, part, records) for claim in one.claims for part in claim.parts] for one in sources]
    shown = [[decision for decision in decisions if decision.word in chosen] for decisions in decided]
    every = [decision for decisions in shown for decision in decisions]
    known = [decision for decisions in decided for decision in decisions]
    listed = [_listed(decision) for word in (NO, OPEN) for decision in every if decision.word == word]
    lacking = [decision for decision in every if decision.word == ABSENT]
    absent = dict.fromkeys(run for decision in lacking for run in decision.part.runs if not records.get(run))
    names = [f"{MAKE}: {', '.join(absent)}."] if absent else []
    is_whole = len(sources) == len(SOURCES) and len(every) == len(known) and not short
    sections = [
        Section("Verdicts by kind", tables=[_counts(known)]),
        Section("Refuted or open", points=listed),
        Section("No run", names),
        *(_section(source, decisions, short) for source, decisions in zip(sources, shown, strict=True)),
        *([_not_claims(), _earlier()] if is_whole else []),
    ]
    commit = _notes()["registered"]
    registered = [f"Registered in commit {commit}."] if commit else []
    return headed("hpcdl: claims", [summary(known)], sections, notes=[] if short else [NOTE, *registered])


def summary(decisions: Sequence[Decision]) -> Verdict:
    """Return how many parts are decided."""
    words = [decision.word for decision in decisions]
    absent = words.count(ABSENT)
    verdicts = {"yes": YES, "no": NO, "open": OPEN, "absent": ABSENT}
    counts = {name: str(words.count(word)) for name, word in verdicts.items()}
    decided = {YES, NO} & {*words}
    return Verdict(
        topic="claims",
        word="decided" if decided else "nothing decided",
        remedy="" if decided or not absent else f"There is no run for {plural(absent, 'claim')}.",
        facts={"claims": plural(len(words), "claim"), **counts},
    )


def _counts(decisions: Sequence[Decision]) -> Table:
    """Return the number of parts by kind and verdict."""
    rows = [
        (kind, *(str(sum(one.part.kind == kind and one.word == word for one in decisions)) for word in MARKED))
        for kind in Kind
    ]
    return Table("", ("kind", *MARKED), rows)


def _listed(decision: Decision) -> str:
    """Return the sentence of a part that is refuted or open, its limits, and its place in the source."""
    limits = "; ".join(dict.fromkeys(_limit(found, decision.part) for found in decision.found))
    return f"{decision.verdict.sentence} Limit: {limits}. Place in the source: {decision.claim.place}."


def _section(source: Source, decisions: Sequence[Decision], short: bool) -> Section:
    """Return the section of a source: a row for each part; without parts it is empty."""
    if not decisions:
        return Section(source.title)
    if short:
        return Section(source.title, points=list(map(_shortly, decisions)))
    rows = [row for decision in decisions for row in _rows(decision)]
    table = Table("", HEADER, rows, 3, answers=["number", "limit, and why"])
    return Section(source.title, [f"{source.source}. {summary(decisions).sentence}"], tables=[table])


def _shortly(decision: Decision) -> str:
    """Return a part with its verdict and the number that decides."""
    _, verdict, number, limit, *_ = _cells(decision, decision.deciding)
    numbers = f"{number}, limit {limit.partition(',')[0]}" if number != NONE else ""
    return f"{verdict}, {_named(decision)}{numbers and ': '}{numbers}."


def _named(decision: Decision) -> str:
    return f"{decision.part.id}: {decision.claim.text}"


def _rows(decision: Decision) -> list[Row]:
    """Return rows of :data:`HEADER`: of the part with the number that decides, and below of each of several."""
    claim, found = decision.claim, decision.found
    text = f"{_named(decision)} ({claim.place})"
    text += "".join(f": {one.clause.text.replace('{}', '...')}" for one in found if len(found) == 1)
    several = [one for one in found if one.used] if len(found) > 1 else []
    rows = [(f"- {one.sentence}", "", *_cells(decision, one)[1:3], "", "", "", "", "") for one in several]
    whole = _cells(decision, decision.deciding)
    return [(text, whole[0], MARKED[decision.word], *whole[2:]), *rows]


def _cells(decision: Decision, found: Found | None) -> Row:
    """Return cells of :data:`HEADER` but the first."""
    part = decision.part
    if found is None:
        return (part.kind, MARKED[ABSENT], NONE, NONE, NONE, NONE, part.report, _before(part, decision.claim))
    if_refuted = "the intervals of all numbers are inside" if part.reversed else found.clause.refuted
    doubt = f" [{found.doubt}]" if found.doubt else ""
    numbers = f"{found.number}{doubt}", _limit(found, part), decision.used, if_refuted
    return (part.kind, MARKED[found.verdict], *numbers, part.report, _before(part, decision.claim))


def _limit(found: Found, part: Part) -> str:
    """Return a limit, and whose it is."""
    clause = found.clause
    unit = f" {clause.unit}" if clause.unit == "points" else ""
    outside = "one outside " if part.reversed else ""
    return f"{outside}{clause.limit}{unit}, {part.because or 'from the sentence itself'}"


@cache
def _history() -> list[dict[str, str]]:
    """Return the rows of the history of claims."""
    with (PAPERS / "claims_earlier.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@cache
def registry() -> dict[str, list[str]]:
    """Return the cells of each row of the registry by its id: source, test, limit, minutes, earlier."""
    text = (PAPERS / "registry.md").read_text(encoding="utf-8")
    rows = (line.strip("|").split("|") for line in text.splitlines() if re.match(r"\|[FDLEO]\d", line))
    return {cells[0]: cells[1:] for cells in rows}


def _before(part: Part, claim: Claim) -> str:
    """Return the verdicts on a part under other tasks and limits, and what the registry says of the first part."""
    past = [
        f"{row['verdict'] or 'on no page'} {row['numbers'].partition(' (')[0]}".strip()
        for row in _history()
        if row["id"] == part.id and row["changed"] != STANDS
    ]
    stated = [f"registry: {registry()[claim.id][-1]}"] if part is claim.parts[0] and claim.id in registry() else []
    return "; ".join([*past, *stated]) or NONE


def _not_claims() -> Section:
    """Return the section of the sentences that no verdict is on."""
    points = [f"{heading}: {', '.join(names)}." for heading, names in _notes()["not_claims"].items()]
    return Section("Not claims", points=points)


@cache
def _notes() -> JsonObject:
    return tomllib.loads((PAPERS / "claims" / "notes.toml").read_text(encoding="utf-8"))


def _earlier() -> Section:
    """Return the section of the verdicts that claims had under other tasks and limits."""
    points = []
    for row in (row for row in _history() if row["changed"] != STANDS):
        head = f"{row['id']}, from {row['date']}: {(row['clause'] or row['claim']).replace('{}', '...')}"
        verdict = f"{row['verdict'] or NONE}, {row['numbers'] or 'on no page'}"
        points.append(f"{head}. Limit: {row['limit']}. Verdict: {verdict}. Changed later: {row['changed']}.")
    return Section("Earlier verdicts", [EARLIER], points=points)
