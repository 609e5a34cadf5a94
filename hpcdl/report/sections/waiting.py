"""Waiting and transfer: time of ranks in communication, late ranks, and stragglers."""

import math
import re
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Final, NamedTuple

from hpcdl.analysis.network.nodes import slow_hosts
from hpcdl.analysis.network.waiting import Waiting
from hpcdl.analysis.run.launches import Launch, undisturbed
from hpcdl.analysis.run.record import Key, Record, group_by_key
from hpcdl.analysis.statistics.estimates import Interval, Vector, ratio_interval
from hpcdl.report.formats.cells import NONE, Number, digits, interval, listed, percent, plural, seconds, sentence
from hpcdl.report.formats.document import Axis, Intervals, Section
from hpcdl.report.formats.tables import Column
from hpcdl.report.run.declaration import EVIDENCE, Answer, Declaration, one_table
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.literature import in_words
from hpcdl.report.run.method_names import Names
from hpcdl.report.sections.nodes import counted

WHOLE: Final = 0.995
"""Least share of a throughput that is all of it."""


class Slowed(NamedTuple):
    """One method at one scale with one kind of straggler; seeds are launches."""

    record: Record
    without: float
    """Images per second, all measured images / their time; the median over seeds."""
    having: float
    ratio: Interval
    """``having`` / ``without``; without bounds if a side has one launch."""
    late: int | None
    disturbed: bool
    """True if all launches with or all without the straggler were disturbed."""


def slowed(launches: Iterable[Launch]) -> list[Slowed]:
    """Return all cases that differ in their straggler only, those that keep most of their throughput first."""
    groups: dict[Key, dict[str | None, list[Launch]]] = {}
    for launch in launches:
        record = launch.record
        if len(launch.seconds) and record.is_training:
            sides = groups.setdefault((record.configuration("straggler"), record.ranks), {})
            sides.setdefault(record.straggler, []).append(launch)
    pairs = [
        _compared(sides[None], sides[straggler])
        for sides in groups.values()
        for straggler in sides
        if straggler is not None and None in sides
    ]
    return sorted(pairs, key=lambda pair: -pair.ratio.value)


def _compared(without: Sequence[Launch], having: Sequence[Launch]) -> Slowed:
    fair = undisturbed(without), undisturbed(having)
    # a simulation without random times counts as equal in every launch of the other side
    sides = [side * len(other) if side[0].record.is_exact else side for side, other in (fair, fair[::-1])]
    before, after = (median(launch.images_per_second for launch in side) for side in sides)
    times = [[launch.seconds_per_image for launch in side] for side in sides]
    ratio = ratio_interval(*times, middles=("mean", "mean"))
    if min(map(len, sides)) == 1:  # steps of one launch do not tell how launches vary
        ratio = Interval(ratio.value, math.nan, math.nan)
    late, *others = {launch.late_rank for launch in sides[1]}
    disturbed = any(side[0].disturbed for side in sides)
    return Slowed(having[0].record, before, after, ratio, None if others else late, disturbed)


def stragglers_page(findings: Findings) -> Section:
    """Return one row per method, scale and straggler."""
    pairs = slowed(findings.launches)
    names = Names(pair.record for pair in pairs)
    columns: list[Column[Slowed]] = [
        Column("method", lambda pair: names(pair.record)),
        Column("straggler", lambda pair: str(pair.record.straggler)),
        Column("ranks", lambda pair: str(pair.record.ranks)),
        Column("images/s without", lambda pair: digits(pair.without)),
        Column("with", lambda pair: digits(pair.having)),
        Column(
            "with / without", lambda p: digits(p.ratio.value) + " DISTURBED" * p.disturbed, importance="answer"
        ),
        Column("95 %", lambda pair: interval(*pair.ratio[1:]), importance="answer"),
        Column("late rank", lambda pair: NONE if pair.late is None else str(pair.late)),
    ]
    note = (
        "With / without: throughput with the straggler / without it. Throughput: all measured images / their time."
    )
    return one_table("Stragglers", columns, pairs, note, left=2, order="most throughput kept first")


def stragglers_answer(findings: Findings) -> Answer | None:
    """Return, per straggler and number of ranks, the shares of their throughput that methods keep.

    The headline has the methods that keep most and least of it; disturbed ones are left out.
    """
    pairs = slowed(findings.launches)
    names, lines = Names(pair.record for pair in pairs), list[str]()
    groups = group_by_key(((str(pair.record.straggler), pair.record.ranks), pair) for pair in pairs)
    for (straggler, _), alike in groups.items():
        where = findings.settings.where(alike[0].record).replace(f"{straggler}, ", "")
        slower = re.fullmatch(r"rank \d+ (\S+)x slower", straggler)
        when = f"with one rank {slower[1]} times slower" if slower else f"where {straggler},"
        called = [(in_words(names(pair.record), pair.record), pair) for pair in alike]
        fair, texts = [(name, _kept(pair)) for name, pair in called if not pair.disturbed], list[str]()
        if fair:
            (first, most), *others = fair
            last = "".join(f", {name} {share}" for name, share in others[-1:])
            texts.append(f"{when} {first} keeps {most} of its throughput{last}")
        if between := [f"{name} keeps {share}" for name, share in fair[1:-1]]:
            texts.append(listed(between))
        if disturbed := [name for name, pair in called if pair.disturbed]:
            texts.append(f"not decided for {listed(disturbed)}: other load disturbed the measurement")
        lines += [sentence(f"{text} {where}") for text in texts]
    basis = [record for record in findings.records if record.straggler is not None and not record.disturbed]
    return Answer(lines[0], lines[1:], basis) if lines else None


def _kept(pair: Slowed) -> str:
    """Return the share of its throughput that a method keeps, with its interval."""
    ends = interval(*pair.ratio[1:], _percent)
    bounds = "" if ends == NONE else f" ({ends})"
    return ("all" if pair.ratio.value >= WHOLE else _percent(pair.ratio.value)) + bounds


def _percent(share: Number) -> str:
    return f"{100 * (share or 0):.0f} %"


def stragglers_charts(findings: Findings) -> list[Intervals]:
    """Return the share of its throughput that each method keeps."""
    pairs = slowed(findings.launches)
    names = Names(pair.record for pair in pairs)
    labels = [", ".join((names(pair.record), plural(pair.record.ranks, "rank"))) for pair in pairs]
    axis = Axis("with / without the straggler")
    note = "Throughput with / without the straggler; bars are 95 % intervals. 1: none is lost."
    shares = [pair.ratio for pair in pairs]
    return [Intervals("Throughput kept with a straggler", labels, shares, axis, 1.0, note)] if pairs else []


STRAGGLERS: Final = Declaration(40, stragglers_page, answer=stragglers_answer, figures=(stragglers_charts,))


NOTE: Final = (
    "Means over ranks and steps. A rank waits while its message or native collective has not begun on another "
    "rank, and moves bytes after that. Time in which the rank computes counts as neither. The latest rank of a "
    "step works longest; the latest rank of a collective begins last. Late by: longest waiting time of another "
    "rank, at most the additional work of the latest rank. A rank is late if this is at least 5 % of a step and "
    "more than twice the clock error, in half of the steps and in all undisturbed launches. Stages of a pipeline "
    "differ by design, so that no stage counts as late."
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
