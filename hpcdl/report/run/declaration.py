"""Declaration of a section: its place on the page, its content, and its answer to the suite's question."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from hpcdl.analysis.run.record import Record, group_by_key
from hpcdl.report.formats.cells import FORMATS, NONE, Number, interval, plural, seconds, volume
from hpcdl.report.formats.document import Axis, Chart, Lines, Point, Section, Series
from hpcdl.report.formats.tables import Column, Importance, R_contra, table
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.grouping import Method, Row, Scale
from hpcdl.report.run.names import legend
from hpcdl.trace.quantity import Quantity

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
        words += [f"other load disturbed all but {kept} of one case"] if kept < launches else []
        marks = {mark for record in measured for mark in record.marks}
        words += [word for mark, word in FLAGS.items() if mark in marks]
    if learned := [each for each in records if each.final_accuracy is not None and each.seed is not None]:
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


METHOD: Final = Column[Row]("method", lambda row: row.name)
RANKS: Final = Column[Row]("ranks", lambda row: str(row.scale.record.ranks), importance="name")


def median(
    quantity: Quantity[Any], heading: str = "", note: str = "", *, importance: Importance = "usual"
) -> Column[Row]:
    """Return the column of a number: its median over seeds, in its unit."""
    shown = FORMATS[quantity.unit]
    return Column(heading or quantity.heading, lambda row: shown(row.scale.median(quantity)), note, importance)


def stated(quantity: Quantity[Any], note: str = "", *, importance: Importance = "usual") -> Column[Row]:
    """Return the column of a property that does not depend on the seed; a dash if it is unknown or 0."""
    return Column(quantity.heading, lambda row: str(quantity.of(row.scale.record) or NONE), note, importance)


def value(quantity: Quantity[Any], heading: str = "", *, importance: Importance = "usual") -> Column[Record]:
    """Return the column of a number of each case, in its unit."""
    shown = FORMATS[quantity.unit]
    return Column(heading or quantity.heading, lambda record: shown(quantity.of(record)), importance=importance)


def bounds(quantity: Quantity[Any], heading: str = "95 %", *, importance: Importance = "usual") -> Column[Record]:
    """Return the column of the interval of a number of each case."""
    low, high, shown = quantity.low, quantity.high, FORMATS[quantity.unit]
    if low is None or high is None:
        raise ValueError(f"{quantity.name} has no interval")
    return Column(heading, lambda record: interval(low.of(record), high.of(record), shown), importance=importance)


HIGHEST: Final = -1
LOWEST: Final = 1


def curves(
    title: str,
    axes: tuple[Axis, Axis],
    lines: Mapping[str, Sequence[Point]],
    note: str,
    *,
    best: Literal[1, -1] = HIGHEST,
    limits: Collection[str] = (),
    references: Mapping[str, Callable[[float], float]] | None = None,
) -> list[Lines]:
    """Return a chart of the lines with two points or more, and ticks at these; none without any.

    Lines that are best, the highest or the lowest, at most places come first, then those that go farthest, then
    those with the best value at their end. The MPI library's own scheme precedes all. ``limits``: lines that bound
    the others; ``references``: lines that were not measured, straight on these axes.
    """
    series = [
        Series(name, sorted(points), "baseline" if name in limits else "method")
        for name, points in lines.items()
        if len({point.x for point in points}) > 1
    ]
    firsts = Counter(_first_at(series, best))
    series.sort(
        key=lambda line: (line.name != "native", -firsts[line.name], -line.points[-1].x, best * line.points[-1].y)
    )
    places = sorted({point.x for line in series for point in line.points})
    for name, value in (references or {}).items() if series else ():
        series.append(Series(name, [Point(x, value(x)) for x in (places[0], places[-1])], "reference"))
    across = replace(axes[0], ticks=places)
    return [Lines(title, across, axes[1], series, note)] if series else []


def _first_at(series: Iterable[Series], best: int) -> list[str]:
    """Return the name of the line that alone has the best value, at each place that has one."""
    at = group_by_key((point.x, (best * point.y, line.name)) for line in series for point in line.points)
    ordered = map(sorted, at.values())
    return [first[1] for first, *others in ordered if others and first[0] < others[0][0]]


def hundredths(share: Number) -> str:
    """Return a share in percent with up to four digits, so that near ones are told apart."""
    return NONE if share is None else f"{100 * share:.4g} %"


ACCURACY: Final = Axis("final accuracy", hundredths)
ACCURACY_NOTE: Final = "Medians over seeds, bars are the range of accuracies."
FRONT_NOTE: Final = f"{ACCURACY_NOTE} In colour, and first: methods that no other method beats in both numbers."
Cost = tuple[str, Quantity[Any], Axis]
"""What a method costs: in words, as a quantity, as the axis of a chart."""
STEP: Final[Cost] = ("step", Record.step_seconds, Axis("step", seconds, 10))
BYTES: Final[Cost] = ("bytes sent", Record.bytes_sent_per_rank, Axis("bytes per rank and step", volume, 10))


def over_cost(groups: Iterable[tuple[str, str, Sequence[Row]]], cost: Cost) -> list[Lines]:
    """Return by title the accuracy of methods over a cost, first those that no other beats in both.

    ``groups``: title, beginning of the methods' names, and methods.
    """
    words, quantity, axis = cost
    titled, made = dict[str, dict[str, Point]](), list[Lines]()
    for title, setting, methods in groups:
        names = legend([(row.name, row.scale.record) for row in methods])
        known = titled.setdefault(title, {})
        for name, row in zip(names, methods, strict=True):
            for point in accuracy_at(row.scale, row.scale.median(quantity)):
                known[", ".join(filter(None, (setting, name)))] = point
    for title, known in titled.items():
        ordered = sorted(known, key=lambda name: (known[name].x, -known[name].y))
        highest = np.maximum.accumulate([-1.0, *(known[name].y for name in ordered)])
        beaten = {name: known[name].y <= before for name, before in zip(ordered, highest, strict=False)}
        series = [Series(name, [known[name]]) for name in sorted(known, key=lambda n: (beaten[n], -known[n].y))]
        if len(series) > 2:
            made.append(Lines(f"Accuracy over {words}: {title}", axis, ACCURACY, series, FRONT_NOTE))
    return made


def accuracy_at(scale: Scale, place: float | None) -> list[Point]:
    """Return the median of the final accuracies with their range at a place of a chart; nothing if unknown."""
    values = scale.values(Record.final_accuracy)
    return [Point(place, float(np.median(values)), min(values), max(values))] if values and place else []
