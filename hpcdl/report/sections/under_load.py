"""Patterns under load: random pairs, n to 1, many messages, and an allreduce beside bulk traffic."""

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from hpcdl.analysis.network.links import CONSPICUOUS, HOSTS, least_share
from hpcdl.analysis.run.launches import Launch, undisturbed
from hpcdl.analysis.run.record import Record, group_by_key
from hpcdl.analysis.statistics.estimates import NOTHING, Interval, mean_interval, share_interval
from hpcdl.report.formats.cells import Number, bounded, digits, interval, percent, plural, rate, volume
from hpcdl.report.formats.document import Section
from hpcdl.report.formats.tables import Column, table
from hpcdl.report.run.declaration import Answer, Declaration
from hpcdl.report.run.findings import Findings
from hpcdl.trace.quantity import Quantity


class Measured(NamedTuple):
    """One case of a pattern, its launches together."""

    record: Record
    launches: Sequence[Launch]
    hosts: Sequence[str]
    """Of each rank."""

    def over_launches(self, value: Callable[[Launch], float]) -> Interval:
        """Return the median of a number of each launch, with Student's t interval of its logarithm."""
        values = [number for launch in self.launches if (number := value(launch)) > 0]
        if not values:
            return NOTHING
        _, low, high = mean_interval(np.log(values))
        return Interval(float(np.median(values)), math.exp(low), math.exp(high))


def measured(findings: Findings, pattern: str) -> list[Measured]:
    """Return the cases of a pattern, ascending by size, with their undisturbed launches; with all if none is."""
    numbered = [each for each in enumerate(findings.launches) if each[1].record.pattern == pattern]
    cases = group_by_key((launch.record.case, each) for each in numbered if len((launch := each[1]).seconds))
    pooled = {record.case: record for record in findings.records}
    made = [
        Measured(pooled[launches[0].record.case], undisturbed(launches), findings.run.hosts_of(indices[0]))
        for indices, launches in (zip(*case, strict=True) for case in cases.values())
    ]
    return sorted(made, key=lambda case: case.record.message_bytes or 0)


def _size(case: Measured) -> int:
    return case.record.message_bytes or 0


def _by_matching(launch: Launch) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """(matchings, ranks): median time of the exchanges of a rank; NaN for one that rested."""
    steps, record = launch.case.steps, launch.record
    matchings = record.spec.matchings
    times = [
        (steps["end"] - steps["begin"])[(steps["rank"] == rank) & (steps["step"] >= record.warmup_steps)] * 1e-9
        for rank in range(record.ranks)
    ]
    table = np.array([np.median(of_rank.reshape(matchings, -1), axis=1) for of_rank in times]).T
    return np.where(table > 0, table, np.nan)


def pair_rate(case: Measured) -> Interval:
    """Return the rate of the median exchange while all ranks exchange (bytes/s in each direction)."""
    return case.over_launches(lambda launch: _size(case) / float(np.nanmedian(_by_matching(launch))))


def shares_under_load(case: Measured) -> list[tuple[str, Interval]]:
    """Return the hosts' shares of the others' rate while all ranks exchange, slowest first; none of two hosts."""
    tables = [_by_matching(launch) for launch in case.launches]
    shares = np.concatenate([np.nanmedian(times, axis=1)[:, None] / times for times in tables])
    names = list(dict.fromkeys(case.hosts))
    hosts = []
    for name in names if len(names) >= HOSTS else ():
        own = shares[:, [rank for rank, host in enumerate(case.hosts) if host == name]]
        hosts.append((name, share_interval(float(np.nanmedian(own)), np.nanmedian(own, axis=1), len(names))))
    return sorted(hosts, key=lambda pair: pair[1].value)


def slow_under_load(case: Measured) -> list[tuple[str, Interval]]:
    """Return the hosts whose exchanges have less than 85 % of the others' rate while all ranks exchange."""
    return [pair for pair in shares_under_load(case) if pair[1].value < CONSPICUOUS and pair[1].high < 1]


def random_pairs_answer(case: Measured) -> str:
    """Return the rate of the median exchange, and the hosts that are slow while all send."""
    shown = bounded(*pair_rate(case), rate)
    what = f"While all {plural(case.record.ranks, 'rank')} exchange {volume(_size(case))}"
    least = least_share((share for _, share in shares_under_load(case)), CONSPICUOUS)
    none = (
        f"each host has at least {percent(least)} of the others' rate" if least else "no slow host could be named"
    )
    slow = [f"{name} has {percent(share.value)} of the others' rate" for name, share in slow_under_load(case)]
    others = " and ".join(slow) or none
    return f"{what}, the median pair has {shown} in each direction; {others}."


def incast_rate(case: Measured) -> Interval:
    """Return the rate at which the receiver gets all messages (bytes/s)."""
    total = (case.record.ranks - 1) * _size(case)
    return case.over_launches(lambda launch: total / float(np.median(launch.seconds)))


def incast_answer(case: Measured) -> str:
    """Return the receiver's rate and the fairness among the senders."""
    return (
        f"{plural(case.record.ranks - 1, 'rank')} that send {volume(_size(case))} to one at once reach "
        f"{bounded(*incast_rate(case), rate)} together; their fairness is {digits(case.record.fairness)}."
    )


def messages_per_second(case: Measured) -> Interval:
    """Return the messages that all pairs together deliver in a second."""
    count = case.record.ranks // 2 * case.record.spec.window
    return case.over_launches(lambda launch: count / float(np.median(launch.seconds)))


def message_rate_answer(case: Measured) -> str:
    """Return the messages a second, the smallest messages first."""
    count = bounded(*messages_per_second(case), lambda number: f"{float(f'{number:.3g}'):,.0f}")
    return (
        f"{plural(case.record.ranks // 2, 'pair')} of ranks deliver {count} "
        f"messages of {volume(_size(case))} per second, {case.record.spec.window} under way at a time."
    )


P50: Final = (Record.beside_p50_seconds, Record.alone_p50_seconds)
P99: Final = (Record.beside_p99_seconds, Record.alone_p99_seconds)


def slowdown(case: Measured, times: tuple[Quantity[float | None], Quantity[float | None]]) -> Interval:
    """Return the time of the allreduce beside bulk traffic / alone; ``times``: :data:`P50` or :data:`P99`."""
    beside, alone = times
    return case.over_launches(lambda one: (beside.of(one.record) or 0.0) / (alone.of(one.record) or math.nan))


def congestor_answer(case: Measured) -> str:
    """Return how much longer an allreduce takes beside bulk traffic, the largest messages first."""
    return (
        f"Beside exchanges of {volume(_size(case))} the 99th percentile of an allreduce of 8 bytes is "
        f"{bounded(*slowdown(case, P99))} times as long as alone, the median "
        f"{digits(slowdown(case, P50).value)} times."
    )


Text = Callable[[Number], str]
SHARED: Final = (
    Column[Measured]("ranks", lambda case: str(case.record.ranks)),
    Column[Measured]("size", lambda case: volume(_size(case))),
)


def _columns(heading: str, value: Callable[[Measured], Interval], shown: Text) -> list[Column[Measured]]:
    """Return the columns of a number and of its interval over launches."""
    return [
        Column(heading, lambda case: shown(value(case).value), importance="answer"),
        Column("95 %", lambda case: interval(*value(case)[1:], shown), importance="answer"),
    ]


def _declared(
    pattern: str,
    order: int,
    title: str,
    note: str,
    columns: Sequence[Column[Measured]],
    sentence: Callable[[Measured], str],
    *,
    smallest_first: bool = False,
) -> Declaration:
    """Return the section of a pattern; ``sentence``: on a case, the largest first."""

    def page(findings: Findings) -> Section:
        cases = measured(findings, pattern)
        tables = [table((*SHARED, *columns), cases)] if cases else []
        return Section(title, [note] if cases else [], tables=tables)

    def answer(findings: Findings) -> Answer | None:
        cases = measured(findings, pattern)
        said = [sentence(case) for case in (cases if smallest_first else cases[::-1])]
        basis = [record for record in findings.records if record.pattern == pattern]
        return Answer(said[0], said[1:], basis) if said else None

    answer.__doc__ = sentence.__doc__  # which `hpcdl list sections` shows
    return Declaration(order, page, answer=answer, name=pattern)


RANDOM_PAIRS: Final = _declared(
    "random_pairs",
    121,
    "Random pairs",
    "All ranks exchange messages in pairs at once, in several random matchings (effective bisection bandwidth). "
    "Rates are of one direction. A host is slow under load below 85 % of the others' rate.",
    [
        *_columns("rate of the median pair", pair_rate, rate),
        Column(
            "slow hosts", lambda case: ", ".join(f"{host} {percent(s.value)}" for host, s in slow_under_load(case))
        ),
    ],
    random_pairs_answer,
)
INCAST: Final = _declared(
    "incast",
    122,
    "Incast",
    "All other ranks send to rank 0 at once. Rate: of all messages at the receiver. Fairness: Jain's index of the "
    "senders' rates, 1 if they are equal.",
    [
        *_columns("rate at the receiver", incast_rate, rate),
        Column("fairness", lambda case: digits(case.record.fairness)),
    ],
    incast_answer,
)
MESSAGE_RATE: Final = _declared(
    "message_rate",
    123,
    "Message rate",
    "Each rank of one half sends windows of messages to one of the other half, as osu_mbw_mr does.",
    [
        Column("window", lambda case: str(case.record.spec.window)),
        *_columns("messages per second", messages_per_second, digits),
        Column("rate of all pairs", lambda case: rate(messages_per_second(case).value * _size(case))),
    ],
    message_rate_answer,
    smallest_first=True,
)
CONGESTOR: Final = _declared(
    "congestor",
    124,
    "Allreduce beside bulk traffic",
    "Even ranks run an allreduce of 8 bytes, alone and while pairs of odd ranks exchange messages of that size. "
    "Numbers are times under traffic / times alone (the congestion impact of GPCNeT).",
    [
        *_columns("p99", lambda case: slowdown(case, P99), digits),
        *_columns("p50", lambda case: slowdown(case, P50), digits),
    ],
    congestor_answer,
)
