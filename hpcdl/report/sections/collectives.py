"""Collectives: times by size, and the fastest algorithm of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Final

from hpcdl.analysis.run.record import Record
from hpcdl.registry import label
from hpcdl.report.formats.cells import (
    NONE,
    bounded,
    digits,
    listed,
    percent,
    plural,
    rate,
    seconds,
    volume,
    whole,
)
from hpcdl.report.formats.document import Axis, Intervals, Section
from hpcdl.report.formats.tables import Column, Table, table
from hpcdl.report.run.declaration import Answer, Declaration, bounds, value
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.names import link_title, scheme_name, several, title_of
from hpcdl.report.run.operations import (
    CHECKED,
    LIBRARY,
    Comparable,
    Group,
    Standing,
    bandwidth,
    bus_bandwidth,
    collective_name,
    collective_time,
    families,
    grouped,
    ranked,
    sizes,
    standings,
)

NOTE: Final = (
    "Times are those of the slowest rank, as quantiles over repetitions. Up to 64 KiB a repetition is a loop of "
    "about 2 ms, and its time is divided by the number of its operations (not for broadcast and reduce). algbw = "
    "size / p50; busbw as nccl-tests defines it, of an alltoallv the bytes of the busiest rank / p50. Best / p50, "
    "native / p50: below 1 the scheme is slower than the fastest scheme, or than the MPI library. Tied: by a test "
    "of the launches the scheme may be as fast as the fastest one; one launch decides nothing."
)
SIMULATED_NOTE: Final = (
    "Simulated: the same program in virtual time on a model of the network, not a measurement. Closed "
    "form: the cost formula in the algorithm's docstring with the model's cost parameters, if all messages have "
    "equal paths."
)


def page(findings: Findings, *, bandwidths: bool = False) -> Section:
    """Return one table per group, each algorithm by size, ``bandwidths``: in the section on them."""
    if bandwidths != ("bus_bandwidth" in findings.answered_by):
        return Section("Bus bandwidth" if bandwidths else "Collectives")
    groups = grouped(findings.records, "collective")
    notes = [
        *[NOTE] * any(not (rows[0].network or rows[0].log) for rows in groups.values()),
        *[SIMULATED_NOTE] * any(group.network for group in groups),
    ]
    columns = [_columns(rows, partial(_place, standings(findings), group)) for group, rows in groups.items()]
    tables = [
        table(of_group, rows, group.title, left=2, ascending=True)
        for of_group, (group, rows) in zip(columns, groups.items(), strict=True)
    ]
    return Section("Collectives", notes, tables=tables)


def _place(known: Mapping[tuple[Group, int], Standing], group: Group, record: Record) -> str:
    return known[group, record.message_bytes or 0].place(record)


def _share_of(others: Iterable[Record], record: Record) -> str:
    """Return the time of the fastest of others / that of a record."""
    return next((_ratio(other.time_p50_seconds, record) for other in ranked(others)), NONE)


def _ratio(time: float | None, record: Record) -> str:
    """Return a time / that of a record; a dash if either is unknown or 0."""
    return digits(time / record.time_p50_seconds) if time and record.time_p50_seconds else NONE


def _reached(record: Record, link: float) -> str:
    """Return the bus bandwidth with its interval: as a share of the links' rate (B/s), where that is not 0."""
    return bounded(*bandwidth(record, link), percent if link else rate)


OF_EXPECTED: Final = Column[Record](
    "of the expected",
    lambda record: percent(record.expected_seconds, record.time_p50_seconds),
    "Of the expected: time on the network of --network / p50; below 100 % the measured one is slower.",
    importance="answer",
)
OF_LINK: Final = Column[Record](
    "busbw / link",
    lambda record: _reached(record, record.link_bytes_per_second) if record.link_bytes_per_second else NONE,
    importance="answer",
)


def _columns(rows: Sequence[Record], place: Callable[[Record], str]) -> list[Column[Record]]:
    """Return the columns of a group; simulated times have no quantiles, no intervals and no checks."""
    simulated, peers = any(record.network for record in rows), sizes(rows)
    closed: list[Column[Record]] = [
        Column("closed form", lambda record: seconds(record.predicted_seconds)),
        Column("closed / simulated", lambda record: _ratio(record.predicted_seconds, record)),
    ]
    measured = [
        bounds(Record.time_p50_seconds, importance="answer"),
        *(value(one, importance="detail") for one in (Record.time_p95_seconds, Record.time_p99_seconds)),
        value(Record.time_max_seconds, importance="detail"),
    ]

    def by_native(record: Record) -> str:
        natives = [peer for peer in peers[record.message_bytes or 0] if peer.aggregation == LIBRARY]
        return NONE if simulated else _share_of(natives, record)

    return [
        value(Record.message_bytes),
        Column("algorithm", lambda record: " = ".join(filter(None, (scheme_name(record), record.chosen)))),
        value(Record.busiest_bytes),
        value(Record.imbalance),
        value(Record.time_p50_seconds, "simulated" if simulated else "", importance="answer"),
        *([] if simulated else measured),
        value(Record.algbw_bytes_per_second, importance="detail"),
        value(Record.busbw_bytes_per_second),
        OF_LINK,
        OF_EXPECTED,
        Column("best / p50", lambda record: _share_of(peers[record.message_bytes or 0], record)),
        Column("native / p50", by_native),
        Column("fastest", place, importance="answer"),
        *(closed if simulated else ()),
        value(Record.joules_per_gigabyte, importance="detail"),
        Column("simulated ranks", lambda record: str(record.simulated_ranks or NONE), importance="detail"),
        value(Record.from_first_arrival_seconds),
        value(Record.from_last_arrival_seconds),
        Column("late rank", lambda record: whole(record.late_rank if record.straggler else None)),
        Column("correct", lambda record: NONE if simulated else CHECKED[record.correct], importance="detail"),
    ]


def answer(findings: Findings) -> Answer | None:
    """Return the fastest scheme of each collective, by size or ranks."""
    lines, basis, undecided = list[str](), list[Record](), 0
    for family, records in families(findings):
        if lines and family.segments and not family.decided:
            undecided += 1
        elif sentences := family.sentences():
            basis = basis or records
            lines += sentences
    if undecided:
        lines.append(f"In {plural(undecided, 'further table')} the fastest scheme is not decided.")
    return Answer(lines[0], lines[1:], basis) if lines else None


def short(findings: Findings) -> Section:
    """Return one row per size: the lowest median, the schemes that are tied with it, and the library's time."""
    if "bus_bandwidth" in findings.answered_by:
        return Section("Collectives")
    every = families(findings)
    shown = [(Column[Comparable](family.unit or "size", lambda point: point.shown), family) for family, _ in every]
    tables = [
        table((size, *FASTEST), family.points, family.title, left=2, ascending=True) for size, family in shown
    ]
    return Section("Collectives", tables=tables, per="operation")


def _of_lowest(column: Column[Record]) -> Column[Comparable]:
    def cell(point: Comparable) -> str:
        return next(map(column.cell, ranked(point.peers) or ranked(point.peers, disturbed=True)), NONE)

    return Column(column.heading, cell, column.note, column.importance)


def _expected(point: Comparable) -> str:
    """Return the share of the fastest scheme that has one, which the library has not, and name another one."""
    first = ranked(point.peers)[:1]
    for record in (*ranked(point.peers), *point.peers):  # all may be disturbed
        if record.expected_seconds:
            return OF_EXPECTED.cell(record) + ("" if record in first else f" ({scheme_name(record)})")
    return NONE


def _standing(point: Comparable) -> str:
    others = [scheme_name(record) for record in point.standing.best[1:]]
    undecided = "not decided" if ranked(point.peers) else "not decided: DISTURBED"
    return several(others) if others else "none" if point.standing.best else undecided


def _library(point: Comparable) -> str:
    return next(
        (seconds(record.time_p50_seconds) for record in point.peers if record.aggregation == LIBRARY), NONE
    )


FASTEST: Final[tuple[Column[Comparable], ...]] = (
    _of_lowest(Column("lowest median", scheme_name, importance="answer")),
    _of_lowest(value(Record.time_p50_seconds, importance="answer")),
    _of_lowest(bounds(Record.time_p50_seconds)),
    Column("tied with it", _standing, importance="answer"),
    Column("native", _library),
    _of_lowest(OF_LINK),
    Column(OF_EXPECTED.heading, _expected, OF_EXPECTED.note, OF_EXPECTED.importance),
    Column("WRONG", lambda point: several([scheme_name(r) for r in point.peers if r.correct is False])),
)


SECTION = Declaration(110, page, short, 100, answer=answer, figures=(collective_time,), compares=True)


def reached(findings: Findings) -> Answer | None:
    """Return which share of the links' rate the fastest scheme reaches, with the longest and shortest messages."""
    link, lines = findings.link, list[str]()
    of = f" of the links' rate of {rate(link)}" if link else ""
    groups = grouped(findings.records, "collective") if "bus_bandwidth" in findings.answered_by else {}
    for group, rows in groups.items():
        fastest = {
            volume(size): [
                (title_of(scheme_name(record)), shown)
                for record in ranked(peers)[:3]
                if (shown := _reached(record, link)) != NONE
            ]
            for size, peers in sizes(rows).items()
        }
        known = [(size, reached) for size, reached in fastest.items() if reached]
        if not known:
            continue
        *shorter, longest = known
        size, ((scheme, share), *_) = longest
        line = f"On {plural(group.ranks, 'rank')} {scheme} reaches {share}{of} at {size}"
        for size, ((other, share), *_) in shorter[:1]:
            line += f", and {f'{other} ' * (other != scheme)}{share.partition(' (')[0]} at {size}"
        lines.append(f"{line}.")
        for size, reached in [longest, *reversed(shorter)]:
            lines.append(f"At {size} the fastest schemes reach: {', '.join(' '.join(each) for each in reached)}.")
    basis = [record for record in findings.records if record.kind == "collective"]
    return Answer(lines[0], lines[1:], basis) if lines else None


BUS_BANDWIDTH = Declaration(
    109,
    lambda findings: page(findings, bandwidths=True),
    answer=reached,
    figures=(bus_bandwidth,),
    name="bus_bandwidth",
    compares=True,
)


NEARLY: Final = 1.1
"""Largest multiple of the fastest scheme's time at which a scheme is nearly as fast."""
EQUAL: Final = 1.01
"""Largest multiple of a simulated time that counts as equal."""
MOST: Final = 3
"""Names of equally fast schemes in a sentence."""
FAR: Final = 10.0
"""Multiple of the fastest time from which on a scheme is not drawn."""
WORST_NOTE: Final = (
    "Worst: largest value, over the topologies, of the scheme's time / the time of the fastest scheme."
)

Operation = tuple[str | None, int | None, int, str | None]
"""Collective, bytes of the message, ranks and network."""

Times = dict[str, dict[str, float]]
"""By scheme and topology, seconds."""


def _on_topologies(findings: Findings) -> list[tuple[Operation, Times, dict[str, float]]]:
    """Return collectives simulated on several topologies, the best worst case first, and the fastest times."""
    groups: dict[Operation, Times] = {}
    for record in findings.records:
        topology = record.settings.get("topology")
        if record.kind == "collective" and topology and record.time_p50_seconds:
            what = (record.collective, record.message_bytes, record.ranks, record.network)
            times = groups.setdefault(what, {}).setdefault(str(record.aggregation), {})
            times[label(topology)] = record.time_p50_seconds
    made = list[tuple[Operation, Times, dict[str, float]]]()
    for what, schemes in groups.items():
        names = dict.fromkeys(name for times in schemes.values() for name in times)
        fastest = {name: min(times.get(name, math.inf) for times in schemes.values()) for name in names}
        worst = {scheme: _worst(times, fastest) for scheme, times in schemes.items()}
        ordered = {scheme: schemes[scheme] for scheme in sorted(worst, key=worst.__getitem__)}
        made += [(what, ordered, fastest)] if len(fastest) > 1 else []
    return made


def _worst(times: Mapping[str, float], fastest: Mapping[str, float]) -> float:
    """Return the largest quotient of a scheme's time / the fastest; infinity if it lacks a topology."""
    return max(times.get(name, math.inf) / time for name, time in fastest.items())


def contention_page(findings: Findings) -> Section:
    """Return one table per collective, a column for each topology."""
    tables = []
    for what, schemes, fastest in _on_topologies(findings):
        rows = [
            (name, *(seconds(times.get(topology)) for topology in fastest), digits(_worst(times, fastest)))
            for name, times in schemes.items()
        ]
        tables.append(Table(_named(what), ("algorithm", *fastest, "worst"), rows, 1, [WORST_NOTE]))
    return Section("Contention", tables=tables)


def _named(what: Operation) -> str:
    collective, message, ranks, network = what
    return f"{collective}, {volume(message)}, {plural(ranks, 'rank')}, {network}"


def contention_answer(findings: Findings) -> Answer | None:
    """Return the scheme that is least behind the fastest of each topology, and the fastest on each."""
    lines = []
    for (collective, message, ranks, network), schemes, fastest in _on_topologies(findings):
        best, times = next(iter(schemes.items()))
        worst = _worst(times, fastest)
        where = f"{collective_name(collective or '')} of {volume(message)}, {link_title(network or '')}"
        all_of = f"on all {len(fastest)} topologies"
        verdict = f"{title_of(best)} is nearly the fastest {all_of}"
        if worst > NEARLY:
            verdict = f"no scheme is nearly the fastest {all_of}; {title_of(best)} comes closest"
        lines.append(
            f"On {plural(ranks, 'rank')} {verdict}, with at most {digits(worst)} times the fastest time ({where})."
        )
        winners: dict[str, list[str]] = {}
        for name, time in fastest.items():
            equal = [scheme for scheme, times in schemes.items() if times.get(name, math.inf) <= EQUAL * time]
            named = sorted(map(title_of, equal))
            of = f"{len(equal)} of {len(schemes)} schemes, such as " if len(equal) > MOST else ""
            winners.setdefault(f"{of}{listed(named[:MOST])}", []).append(title_of(name))
        lines += [f"Fastest on {listed(names)}: {winner}." for winner, names in winners.items()]
    return Answer(lines[0], lines[1:]) if lines else None


def contention_charts(findings: Findings) -> list[Intervals]:
    """Return time / fastest time of each scheme, as a range over the topologies."""
    made = []
    for what, schemes, fastest in _on_topologies(findings):
        spans = dict[str, tuple[float, float, float]]()
        for name, times in schemes.items():
            ratios = [times.get(topology, math.inf) / time for topology, time in fastest.items()]
            if max(ratios) < FAR:
                spans[title_of(name)] = median(ratios), min(ratios), max(ratios)
        note = f"Median and range over the topologies. Not drawn: schemes that take {FAR:g} times as long on one."
        title, axis = f"Time / fastest time over topologies: {_named(what)}", Axis("time / fastest")
        made.append(Intervals(title, list(spans), list(spans.values()), axis, 1.0, note))
    return made


CONTENTION = Declaration(
    17, contention_page, answer=contention_answer, figures=(contention_charts,), name="contention"
)
