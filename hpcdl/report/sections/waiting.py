"""Waiting and transfer: time of ranks in communication, late ranks, and stragglers."""

import re
from statistics import median
from typing import Final, NamedTuple

from hpcdl.analysis.network.nodes import slow_hosts
from hpcdl.analysis.network.waiting import Waiting
from hpcdl.analysis.run.launches import Launch
from hpcdl.analysis.run.record import Record, group_by_key
from hpcdl.analysis.statistics.differences import Vector
from hpcdl.report.formats.cells import NONE, digits, interval, percent, plural, seconds, sentence, whole
from hpcdl.report.formats.document import Axis, Intervals, Section
from hpcdl.report.formats.tables import Column
from hpcdl.report.run.declaration import EVIDENCE, Answer, Declaration, one_table
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.names import Names, in_words
from hpcdl.report.run.views import Pair, Side, View
from hpcdl.report.sections.links import counted


def _trained(findings: Findings) -> list[Record]:
    return [record for record in findings.records if record.is_training and record.images_per_second]


def _place(findings: Findings, side: Side) -> str:
    record = side.record
    return findings.settings.where(record).replace(f"{record.straggler}, ", "")


def _when(side: Side) -> str:
    straggler = str(side.record.straggler)
    slower = re.fullmatch(r"rank \d+ (\S+)x slower", straggler)
    return f"with one rank {slower[1]} times slower" if slower else f"where {straggler},"


def _names(findings: Findings) -> Names:
    return Names(record for record in _trained(findings) if record.straggler is not None)


def _slowed(findings: Findings) -> list[Pair]:
    """Return all methods with and without a straggler, those that keep most of their throughput first."""
    pairs = [pair for some in STRAGGLER.judged(findings, Record.images_per_second) for pair in some]
    return sorted(pairs, key=lambda pair: -pair.judged.size.value)


def stragglers_page(findings: Findings) -> Section:
    """Return one row per method, scale and straggler."""
    pairs = findings.once(_slowed)
    names = findings.once(_names)
    columns: list[Column[Pair]] = [
        Column("method", lambda pair: names(pair.record)),
        Column("straggler", lambda pair: str(pair.record.straggler)),
        Column("ranks", lambda pair: str(pair.record.ranks)),
        Column("images/s without", lambda pair: digits(pair.other.median(Record.images_per_second))),
        Column("with", lambda pair: digits(pair.first.median(Record.images_per_second))),
        Column(
            "with / without",
            lambda p: digits(p.judged.size.value) + " DISTURBED" * (p.judged.reason == "disturbed"),
            importance="answer",
        ),
        Column("95 %", lambda pair: interval(*pair.judged.size[1:]), importance="answer"),
        Column("late rank", lambda pair: whole(pair.record.late_rank)),
    ]
    note = (
        "With / without: throughput with the straggler / without it. Throughput: all measured images / their time."
    )
    return one_table("Stragglers", columns, pairs, note, left=2, order="most throughput kept first")


STRAGGLER: Final = View(
    "straggler",
    _trained,
    [(Record.images_per_second, "keeps")],
    against=lambda side, _: side.record.straggler is None,
    subject=lambda findings, side, _: in_words(findings.once(_names)(side.record), side.record),
    where=_place,
    when=_when,
)


def stragglers_charts(findings: Findings) -> list[Intervals]:
    """Return the share of its throughput that each method keeps."""
    pairs = findings.once(_slowed)
    names = findings.once(_names)
    labels = [", ".join((names(pair.record), plural(pair.record.ranks, "rank"))) for pair in pairs]
    axis = Axis("with / without the straggler")
    note = "Throughput with / without the straggler; bars are 95 % intervals. 1: none is lost."
    shares = [pair.judged.size for pair in pairs]
    return [Intervals("Throughput kept with a straggler", labels, shares, axis, 1.0, note)] if pairs else []


def stragglers_answer(findings: Findings) -> Answer | None:
    """Return, per straggler and number of ranks, the shares of their throughput that methods keep."""
    return STRAGGLER.answer(findings)


STRAGGLERS: Final = Declaration(40, stragglers_page, answer=stragglers_answer, figures=(stragglers_charts,))


NOTE: Final = (
    "Means over ranks and steps. A rank waits while its message or native collective has not begun on another "
    "rank, and moves bytes after that. Time in which the rank computes counts as neither. The latest rank of a "
    "step works longest; the latest rank of a collective begins last. Late by: longest waiting time of another "
    "rank, at most the additional work of the latest rank. A rank is late if this time is at least 5 % of a "
    "step and more than twice the clock error, in half of the steps and in all undisturbed launches. Stages of a "
    "pipeline differ by design, so that no stage counts as late."
)


class Waited(NamedTuple):
    """Waiting of a launch, and its name of a rank."""

    waiting: Waiting
    launch: Launch
    latest: str
    """Name of the latest rank; a dash if there is none."""

    def share(self, times: Vector) -> float:
        """Return the mean over ranks of times (s) / the step."""
        step = float(self.waiting.step_seconds.mean())
        return float(times.mean()) / step if step else 0.0

    @property
    def verdict(self) -> str:
        """Late, or the reason why no rank is."""
        waiting = self.waiting
        if self.launch.disturbed or waiting.late or not waiting.latest:
            return "disturbed" if self.launch.disturbed else "late" if waiting.late else NONE
        if waiting.record.stages:
            return "stages differ"
        return "within clock error" if waiting.latest.seconds <= 2 * waiting.clock_error else NONE


COLUMNS: Final[tuple[Column[Waited], ...]] = (
    Column("case", lambda row: str(row.waiting.record.case)),
    Column("launch", lambda row: str(row.waiting.record.launch), importance="detail"),
    Column("ranks", lambda row: str(row.waiting.record.ranks)),
    Column("step", lambda row: seconds(float(row.waiting.step_seconds.mean()))),
    Column("wait", lambda row: seconds(float(row.waiting.waiting.mean()))),
    Column("wait / step", lambda row: digits(row.share(row.waiting.waiting)), importance="answer"),
    Column("move bytes", lambda row: seconds(float(row.waiting.transfer.mean())), importance="detail"),
    Column("move / step", lambda row: digits(row.share(row.waiting.transfer))),
    Column("latest rank", lambda row: row.latest),
    Column("late by", lambda row: seconds(row.waiting.latest.seconds) if row.waiting.latest else NONE),
    Column("verdict", lambda row: row.verdict, importance="answer"),
)


def page(findings: Findings) -> Section:
    """Return one row per launch of a case in which ranks wait; of several launches the row names its own."""
    known = [
        Waited(waits, launch, _rank_name(findings, index, waits.latest.rank) if waits.latest else NONE)
        for index, (waits, launch) in enumerate(zip(findings.waiting, findings.launches, strict=True))
        if waits and waits.waiting.any()
    ]
    known.sort(key=lambda row: (not row.waiting.late, -row.share(row.waiting.waiting)))
    single = len({fields.get("launch") for fields in findings.run.described}) == 1
    columns = [column for column in COLUMNS if not (single and column.heading == "launch")]
    order = "late ranks first, then the longest share of waiting"
    return one_table("Waiting and transfer", columns, known, NOTE, left=2 if single else 3, order=order)


def _rank_name(findings: Findings, index: int, rank: int) -> str:
    """Return the name of a rank, with its host where the ranks of the case are on several."""
    hosts = [] if findings.run.described[index].get("network") else findings.run.hosts_of(index)
    return f"rank {rank} on {hosts[rank]}" if len(set(hosts)) > 1 else f"rank {rank}"


def answer(findings: Findings) -> Answer | None:
    """Return one line per late rank: by how much it is late, in how many of the cases that show it, and why.

    A rank is late in a case if it is in all of its undisturbed launches.
    """
    cases: dict[str, dict[str, list[float]]] = {}
    for index, (waiting, launch) in enumerate(zip(findings.waiting, findings.launches, strict=True)):
        simulated = launch.record.network and launch.record.straggler
        if (waiting or simulated) and not launch.disturbed:
            rank, late = launch.late_rank, launch.late_seconds
            name = "" if rank is None or late is None else _rank_name(findings, index, rank)
            cases.setdefault(str(launch.record.case), {}).setdefault(name, []).append(late or 0.0)
    single = [name_and_times for times in cases.values() if len(times) == 1 for name_and_times in times.items()]
    ranks = group_by_key((name, median(times)) for name, times in single if name)
    lines, slow = [], slow_hosts(counted(findings))
    for name, times in sorted(ranks.items(), key=lambda rank: max(rank[1]), reverse=True):
        by = " to ".join(dict.fromkeys((seconds(min(times)), seconds(max(times)))))
        count = "all" if len(times) == len(cases) else f"{len(times)} of"
        where = f" in {count} {len(cases)} cases" if len(cases) > 1 else ""
        reason = "other ranks wait for this rank, not for its links"
        host = name.partition(" on ")[2]
        if host in slow:
            reason += f"; {host} computes at {percent(slow[host][0].value)} of the other hosts' speed"
        lines.append(sentence(f"{name} is late by {by} per step{where}: {reason}"))
    return Answer(lines[0], lines[1:]) if lines else None


WAITING: Final = Declaration(115, page, rows=EVIDENCE, answer=answer)
