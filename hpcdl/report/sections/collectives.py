"""Collectives: times by size, and the fastest algorithm of each."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import starmap
from typing import Any, Final, NamedTuple

from hpcdl.analysis.run.record import Record
from hpcdl.analysis.statistics.estimates import Interval
from hpcdl.report.formats.cells import NONE, digits, plural, rate, seconds, spread, volume
from hpcdl.report.formats.document import REST, Column, Section, Table, table
from hpcdl.report.formats.verdicts import Verdict
from hpcdl.report.run.columns import bounds, value
from hpcdl.report.run.declaration import Answer, Declaration, certainty
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.method_names import scheme_name
from hpcdl.report.run.operations import (
    BEST,
    CHECKED,
    TIED,
    Group,
    bus_bandwidth,
    collective_time,
    grouped,
    place,
    ranked,
    sizes,
)
from hpcdl.trace.quantity import Quantity

MOST: Final = 5
"""Algorithms of a size in a short report, at most."""
NAMED: Final = 3
"""Tied algorithms that a line names."""
LONG: Final = 1 << 16
"""Bytes from which on a collective's time is one of bandwidth."""
WIDE: Final = 100
"""Share of the median (%) from which on the distance of an interval's end is not stated."""
NOTE: Final = (
    "Times are of the slowest rank, quantiles over repetitions. Up to 64 KiB a repetition is a loop of about "
    "2 ms, by the number of its operations, except of broadcast and reduce. algbw = size / p50; busbw as "
    "nccl-tests defines it. Of best, of native: the other's p50 by this one's, so that 2.00 is twice as fast. "
    "Tied: a test of the launches does not distinguish it from the fastest; one launch is inconclusive."
)
AT_ONCE_NOTE: Final = (
    "Two at once: p50 is until both have ended. First, second: p50 (p99) of each, alone and beside the other in "
    "turn. Overlap: the sum of both alone by both at once; 1.00 is none, 2.00 hides one of two equal ones."
)
SIMULATED_NOTE: Final = (
    "Simulated: the same program in virtual time on a model of the network, not a measurement. Closed "
    "form: the cost that the algorithm's docstring states, with the model's numbers, where all messages travel "
    "alike; share: closed form by simulated."
)


def is_one_launch(records: Iterable[Record]) -> bool:
    """Return True if any of the measured records has one launch only."""
    return any(record.launches == 1 and not record.network for record in records)


def one_launch(records: Iterable[Record]) -> list[str]:
    """Return the note of a table with intervals within one launch; nothing for others."""
    if not is_one_launch(records):
        return []
    return ["One launch: intervals are over its repetitions, and launches vary more."]


def page(findings: Findings) -> Section:
    """Return one table per group: each algorithm by size."""
    groups = grouped(findings.records, "collective")
    notes = [
        *([NOTE] if any(not group.network for group in groups) else []),
        *one_launch([record for rows in groups.values() for record in rows]),
        *([SIMULATED_NOTE] if any(group.network for group in groups) else []),
        *([AT_ONCE_NOTE] if any(record.concurrent for rows in groups.values() for record in rows) else []),
    ]
    return Section("Collectives", notes, tables=[_table(group, rows) for group, rows in groups.items()])


def _table(group: Group, rows: Sequence[Record]) -> Table:
    peers = sizes(rows)
    among = [Among(record, alike) for alike in peers.values() for record in alike]
    return table(_columns(simulated=bool(group.network)), among, group.title, left=2, ascending=True)


class Among(NamedTuple):
    """A record among those of the same size."""

    record: Record
    peers: Sequence[Record]

    def share_of(self, others: Iterable[Record]) -> str:
        """Return the time of the fastest of others by its own."""
        fastest, time = ranked(others)[:1], self.record.time_p50_seconds
        return digits((fastest[0].time_p50_seconds or 0) / time) if fastest and time else NONE

    @property
    def natives(self) -> list[Record]:
        """Those of the MPI library."""
        return [peer for peer in self.peers if peer.aggregation == "native"]

    @property
    def predicted_share(self) -> str:
        """Closed form by simulated time."""
        stated, time = self.record.predicted_seconds, self.record.time_p50_seconds
        return digits(stated / time) if stated is not None and time else NONE


def _of(column: Column[Record]) -> Column[Among]:
    return Column(column.heading, lambda among: column.cell(among.record), importance=column.importance)


def _alone_and_beside(heading: str, middle: Quantity[Any], high: Quantity[Any]) -> Column[Among]:
    def cell(among: Among) -> str:
        time = middle.of(among.record)
        return NONE if time is None else f"{seconds(time)} ({seconds(high.of(among.record))})"

    return Column(heading, cell, importance="detail")


def _late_rank(record: Record) -> str:
    return NONE if record.late_rank is None or not record.straggler else str(record.late_rank)


def _overlap(record: Record) -> str:
    time = record.time_p50_seconds
    return digits(_apart(record) / time) if _apart(record) and time else NONE


def _columns(*, simulated: bool) -> list[Column[Among]]:
    """Return the columns; simulated times have no quantiles, no intervals and no checks."""
    measured = [
        bounds(Record.time_p50_seconds, importance="answer"),
        *(value(one, importance="detail") for one in (Record.time_p95_seconds, Record.time_p99_seconds)),
        value(Record.time_max_seconds, importance="detail"),
    ]
    return [
        _of(value(Record.message_bytes)),
        _of(Column("algorithm", lambda record: " = ".join(filter(None, (scheme_name(record), record.chosen))))),
        _of(value(Record.time_p50_seconds, "simulated" if simulated else "", importance="answer")),
        *map(_of, [] if simulated else measured),
        _of(value(Record.algbw_bytes_per_second, importance="detail")),
        _of(value(Record.busbw_bytes_per_second)),
        Column("of best", lambda among: among.share_of(among.peers)),
        Column("of native", lambda among: NONE if simulated else among.share_of(among.natives)),
        Column("fastest", lambda among: place(*among), importance="answer"),
        Column("closed form", lambda among: seconds(among.record.predicted_seconds) if simulated else NONE),
        Column("share", lambda among: among.predicted_share if simulated else NONE),
        _of(Column("simulated ranks", lambda record: str(record.simulated_ranks or NONE), importance="detail")),
        _of(value(Record.from_first_arrival_seconds)),
        _of(value(Record.from_last_arrival_seconds)),
        _of(Column("late rank", _late_rank)),
        *starmap(_alone_and_beside, AT_ONCE),
        _of(Column("overlap", _overlap)),
        _of(Column("correct", lambda record: NONE if simulated else CHECKED[record.correct], importance="detail")),
    ]


AT_ONCE: Final = (
    ("first alone", Record.alone_p50_seconds, Record.alone_p99_seconds),
    ("beside second", Record.beside_p50_seconds, Record.beside_p99_seconds),
    ("second alone", Record.concurrent_alone_p50_seconds, Record.concurrent_alone_p99_seconds),
    ("beside first", Record.concurrent_beside_p50_seconds, Record.concurrent_beside_p99_seconds),
)
"""Column, median and 99th percentile of each of two collectives."""


def _apart(record: Record) -> float:
    """Return the time of two collectives one after the other (s); 0 for one."""
    return (record.alone_p50_seconds or 0.0) + (record.concurrent_alone_p50_seconds or 0.0)


def at_once(findings: Findings) -> list[Verdict]:
    """Return whether a second communicator shortens two collectives at once, the longest vectors first."""
    pairs: dict[object, dict[int | None, Record]] = {}
    for record in sorted(findings.records, key=lambda record: -(record.message_bytes or 0)):
        if record.concurrent and record.time_p50_seconds:
            key = (record.problem(), record.aggregation, record.ranks)
            pairs.setdefault(key, {})[record.communicators] = record
    return [_second_communicator(pair[1], pair[2]) for pair in pairs.values() if len(pair) > 1]


def _second_communicator(one: Record, two: Record) -> Verdict:
    words = {(BEST, ""): "slower", ("", BEST): "faster", (TIED, TIED): "tied"}
    times = {"one": one.time_p50_seconds, "two": two.time_p50_seconds, "apart": _apart(one)}
    return Verdict(
        topic="at-once",
        word=words.get((place(one, [one, two]), place(two, [one, two])), "undecided"),
        question="Does a second communicator overlap two collectives?",
        case=f"{one.collective} and {one.concurrent} of {volume(one.message_bytes)} by {scheme_name(one)}",
        size=Interval((two.time_p50_seconds or math.nan) / (one.time_p50_seconds or math.nan), math.nan, math.nan),
        launches=[one.launches, two.launches],
        marks=list(dict.fromkeys([*one.marks, *two.marks])),
        facts={name: seconds(time) for name, time in times.items()},
    )


def _counted(findings: Findings) -> list[Verdict]:
    """Return how many pairs a second communicator makes faster, if there are several, then the verdict on each."""
    pairs = at_once(findings)
    counts = Counter(pair.word for pair in pairs)
    facts = {
        "counts": ", ".join(f"{word} in {counts[word]}" for word in ("faster", "slower", "tied", "undecided")),
        "cases": plural(len(pairs), "case"),
        "times": spread(pair.size.value for pair in pairs),
        "basis": certainty([record for record in findings.records if record.concurrent]),
    }
    return [*([Verdict(topic="at-once", word="counted", facts=facts)] if len(pairs) > 1 else []), *pairs]


def answer(findings: Findings) -> Answer | None:
    """Return the fastest algorithm of each size, or of each number of ranks if there is one size."""
    families: dict[Group, dict[Group, list[Record]]] = {}
    for group, rows in grouped(findings.records, "collective").items():
        families.setdefault(group._replace(ranks=0), {})[group] = rows
    lines = [verdict.sentence for verdict in _counted(findings)]
    lines += [line for family in families.values() for line in _lines(family)]
    return Answer(lines[0], lines[1:]) if lines else None


def _lines(family: dict[Group, list[Record]]) -> list[str]:
    largest, rows = list(family.items())[-1]
    if len(family) > 1 and len({size for rows in family.values() for size in sizes(rows)}) == 1:
        listed = _fastest([(str(group.ranks), peers) for group, peers in family.items()])
        title = largest.titled(volume(rows[0].message_bytes))
        return [f"{title}: {listed} ranks{_doubts(rows)}."] if listed else []
    alike: dict[str, list[int]] = {}
    for group, rows in reversed(family.items()):
        if listed := _fastest([(volume(size), peers) for size, peers in sizes(rows).items()]):
            alike.setdefault(listed + _doubts(rows), []).append(group.ranks)
    lines = []
    for listed, ranks in alike.items():
        *first, last = sorted(ranks)
        subject = " and ".join(filter(None, [", ".join(map(str, first)), plural(last, "rank")]))
        peers = next(list(sizes(rows).values())[-1] for group, rows in family.items() if group.ranks == last)
        lines.append(f"{largest.titled(subject)}: {listed}{_reached(ranked(peers)[:1])}.")
    return lines


def _reached(best: Sequence[Record]) -> str:
    """Return the bus bandwidth of the lowest measured median among the longest vectors."""
    return "".join(
        f"; {scheme_name(record)} reaches {rate(record.busbw_bytes_per_second)} (busbw) at "
        f"{volume(record.message_bytes)}"
        for record in best
        if record.busbw_bytes_per_second and not record.network and (record.message_bytes or 0) >= LONG
    )


def _fastest(groups: Sequence[tuple[str, Sequence[Record]]]) -> str:
    """Return the fastest algorithms and where they are; empty where no two can be compared."""
    if all(len(ranked(peers)) < 2 for _, peers in groups):
        return ""
    known = any(place(peer, peers) for _, peers in groups for peer in peers)
    runs: list[tuple[str, list[str]]] = []
    for where, peers in groups:
        ordered = ranked(peers)
        names = [scheme_name(record) for record in ordered if place(record, peers)] if known else []
        names = names or [scheme_name(record) for record in ordered[:1] if not known]
        if len(names) > NAMED + 1:
            names = [*names[:NAMED], f"{len(names) - NAMED} more"]
        fastest = f"{', '.join(names[:-1])} or {names[-1]} (tied)" if len(names) > 1 else "".join(names)
        fastest = fastest or "inconclusive"
        if not runs or runs[-1][0] != fastest:
            runs.append((fastest, []))
        runs[-1][1].append(where)
    listed = "; ".join(
        f"{fastest} {f'at {where[0]}' if len(where) == 1 else f'from {where[0]} to {where[-1]}'}"
        for fastest, where in runs
    )
    return f"fastest {listed}" if known else f"lowest median, inconclusive: {listed}"


def _doubts(rows: Sequence[Record]) -> str:
    many = any((record.launches or 0) > 1 for record in rows)
    single = f"; one launch only{' of some' if many else ''}" if is_one_launch(rows) else ""
    shared = any(record.oversubscribed for record in rows)
    return single + ("; OVERSUBSCRIBED: ranks share cores" if shared else "")


def short(findings: Findings) -> Section:
    """Return one row per size: the fastest algorithms, and all wrong ones.

    A measured median is followed by the distance of the farther end of its interval.
    """
    groups = grouped(findings.records, "collective")
    notes = one_launch([record for rows in groups.values() for record in rows])
    header = ("size", "median time, best first")
    tables = [
        Table(group.title, header, [_best(peers) for peers in sizes(rows).values()], 2)
        for group, rows in groups.items()
    ]
    return Section("Collectives: * fastest, ~ tied with it", notes, tables=tables, per="operation")


def _best(peers: Sequence[Record]) -> tuple[str, str]:
    """Return a size, and the medians of its best algorithms and of all wrong ones; disturbed ones come later."""
    right = [record for record in peers if record.time_p50_seconds and record.correct is not False]
    right.sort(key=lambda record: (bool(record.disturbed), record.time_p50_seconds))
    shown = [*right[:MOST], *(peer for peer in peers if peer.correct is False)]
    more = [f"{len(peers) - len(shown)} more {REST}"] if len(shown) < len(peers) else []
    return volume(peers[0].message_bytes), ", ".join([*(_marked(record, peers) for record in shown), *more])


def _marked(record: Record, peers: Sequence[Record]) -> str:
    standing = "disturbed" if record.disturbed else {BEST: "*", TIED: "~"}.get(place(record, peers), "")
    mark = "WRONG" if record.correct is False else standing
    time = f"{seconds(record.time_p50_seconds)}{_spread(record)}"
    return " ".join(filter(None, (scheme_name(record), time, mark)))


def _spread(record: Record) -> str:
    """Return the farther bound of the interval, as a share of the median; empty if simulated or without bounds."""
    middle, low, high = record.time_p50_seconds, record.time_p50_low_seconds, record.time_p50_high_seconds
    if record.network or not middle or low is None or high is None:
        return ""
    share = 100 * max(high - middle, middle - low) / middle
    return f" +-{share:.0f} %" if share < WIDE else " (too few launches)"


SECTION = Declaration(
    110,
    page,
    short,
    100,
    answer=answer,
    figures=(collective_time, bus_bandwidth),
)
