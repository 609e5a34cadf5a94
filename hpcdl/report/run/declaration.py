"""Declaration of a section: its place on the page, its content, and its answer to the suite's question."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from hpcdl.analysis.run.record import Record, group_by_key
from hpcdl.report.formats.cells import plural
from hpcdl.report.formats.document import Chart, Section
from hpcdl.report.formats.tables import Column, R_contra, table
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.grouping import Method

EVIDENCE: Final = 8
"""Rows of a section that explains others."""
FLAGS: Final = {
    "emulated": "emulated links",
    "oversubscribed": "ranks share cores",
    "disturbed": "disturbed by other load",
    "throttled": "clocks were throttled",
}
"""Words for the flags of measured records."""


class Answer(NamedTuple):
    """Answer to the suite's question, as far as one section gives it."""

    headline: str
    """One sentence of at most 30 words with at most three numbers, one of them with its interval."""
    details: Sequence[str] = ()
    """Further sentences of that form."""
    basis: Sequence[Record] = ()
    """Records that they rest on, of which the badges below the headline are made; empty: all of the run."""
    good: bool = False
    """True if a page may show the headline in green."""


@dataclass(frozen=True)
class Declaration:
    """A section: a constant of a file in ``report/sections``. It has no content for runs that it is not about."""

    order: int
    """Place on the page, ascending; answers have the same order."""
    page: Callable[[Findings], Section]
    """All content; the rows of its tables begin with those that matter most."""
    short: Callable[[Findings], Section] | None = None
    """Content of a short report; None: the first rows of all content."""
    rows: int | None = None
    """Rows in a short report; None: the usual number (``ROWS`` and ``FURTHER`` of ``report/contents.py``)."""
    answer: Callable[[Findings], Answer | None] | None = None
    """Contribution to the verdict, or beginning of the section if another one answers the suite's question."""
    figures: Sequence[Callable[[Findings], Sequence[Chart]]] = ()
    """Charts of a page with figures, before the tables."""
    name: str = ""
    """Name by which a suite asks for its answer; empty: that of its file."""
    table: str = ""
    """Name of the section whose table shows the answer; empty: its own."""
    compares: bool = False
    """True if its tables have the shares of a stated network and link: then a terminal shows them too."""


def badges(records: Sequence[Record]) -> list[str]:
    """Return what numbers of ``records`` rest on, in words: the fewest launches, the seeds, and each flag."""
    measured = [record for record in records if not record.network]
    simulated = len(records) - len(measured)
    words = [f"{simulated} of {len(records)} cases simulated" if measured else "simulated"] if simulated else []
    if measured:
        kept = min(record.launches for record in measured)
        launches = min(record.launches + record.launches_left_out for record in measured)
        words.append("1 launch" if launches == 1 else f"{launches} launches")
        words += [f"of one case only {kept} undisturbed"] if kept < launches else []
        marks = {mark for record in measured for mark in record.marks}
        words += [word for mark, word in FLAGS.items() if mark in marks]
    if learned := [record for record in records if record.final_accuracy is not None]:
        seeds = group_by_key(((record.ranks, record.configuration()), record.seed) for record in learned)
        counts = {len({*of_case}) for of_case in seeds.values()}
        few, many = min(counts), max(counts)
        words.append(plural(few, "seed") if few == many else f"{few} to {many} seeds")
    return words


def per_setting(
    findings: Findings,
    title: str,
    columns: Sequence[Column[R_contra]],
    rows: Callable[[Sequence[Method]], Sequence[R_contra]],
    note: str = "",
    order: str = "",
) -> Section:
    """Return a section with one table per problem; ``rows``: those of a problem's methods, perhaps none."""
    tables = [
        table(columns, made, findings.settings.title(methods[0].record), order=order)
        for methods in findings.problems
        if (made := rows(methods))
    ]
    return Section(title, [note] if tables and note else [], tables=tables, per="setting")


def one_table(
    title: str, columns: Sequence[Column[R_contra]], rows: Sequence[R_contra], note: str = "", **options: Any
) -> Section:
    """Return a section with one table, without content if there are no rows; ``options``: of Table."""
    return Section(title, tables=[table(columns, rows, notes=[note] * bool(note), **options)] if rows else [])
