"""Waiting and transfer: time of ranks in communication, late ranks, and stragglers."""

import math
import re
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Final, NamedTuple

from hpcdl.analysis.network.waiting import Waiting
from hpcdl.analysis.run.launches import Launch, undisturbed
from hpcdl.analysis.run.record import Key, Record
from hpcdl.analysis.statistics.estimates import Interval, Vector, ratio_interval
from hpcdl.report.formats.cells import NONE, Number, digits, interval, listed, plural, seconds, sentence
from hpcdl.report.formats.document import Axis, Intervals, Section
from hpcdl.report.formats.tables import Column, table
from hpcdl.report.run.declaration import EVIDENCE, Answer, Declaration
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.literature import in_words
from hpcdl.report.run.method_names import Names

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

    @property
    def bounds(self) -> tuple[Number, Number]:
        """Of the ratio; None if unknown."""
        return self.ratio[1:] if math.isfinite(self.ratio.low) else (None, None)


def slowed(launches: Iterable[Launch]) -> list[Slowed]:
    """Return all cases that differ in their straggler only, those that keep most of their throughput first."""
    plain: dict[Key, list[Launch]] = {}
    slow: dict[Key, list[Launch]] = {}
    for launch in launches:
        record = launch.record
        if not len(launch.seconds) or not record.is_training:
            continue
        straggler = record.straggler
        key = (record.configuration("straggler"), record.ranks)
        group = plain.setdefault(key, []) if straggler is None else slow.setdefault((*key, straggler), [])
        group.append(launch)
    pairs = [(plain[*key], having) for (*key, _), having in slow.items() if tuple(key) in plain]
    return sorted((_compared(*pair) for pair in pairs), key=lambda pair: -pair.ratio.value)


def _compared(without: Sequence[Launch], having: Sequence[Launch]) -> Slowed:
    fair = undisturbed(without), undisturbed(having)
    # a simulation without random times counts as equal in every launch of the other side
    sides = [side * len(other) if side[0].record.is_exact else side for side, other in (fair, fair[::-1])]
    before, after = (median(launch.images_per_second for launch in side) for side in sides)
    times = [[launch.seconds_per_image for launch in side] for side in sides]
    ratio = ratio_interval(*times, middles=("mean", "mean"))
    if min(map(len, sides)) == 1:  # steps of one launch do not tell how launches vary
        ratio = Interval(ratio.value, math.nan, math.nan)
    late = {launch.late_rank for launch in sides[1]}
    named = late.pop() if len(late) == 1 else None
    return Slowed(having[0].record, before, after, ratio, named, any(side[0].disturbed for side in sides))


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
            "with / without",
            lambda pair: digits(pair.ratio.value) + " DISTURBED" * pair.disturbed,
            importance="answer",
        ),
        Column("95 %", lambda pair: interval(*pair.bounds), importance="answer"),
        Column("late rank", lambda pair: NONE if pair.late is None else str(pair.late)),
    ]
    note = (
        "With / without: throughput with the straggler / without it. Throughput: all measured images / their time."
    )
    made = [table(columns, pairs, notes=[note], left=2, order="most throughput kept first")] if pairs else []
    return Section("Stragglers", tables=made)


def stragglers_answer(findings: Findings) -> Answer | None:
    """Return, per straggler and number of ranks, the shares of their throughput that methods keep.

    The headline has the methods that keep most and least of it; disturbed ones are left out.
    """
    pairs = slowed(findings.launches)
    names, lines = Names(pair.record for pair in pairs), list[str]()
    for straggler, ranks in dict.fromkeys((str(pair.record.straggler), pair.record.ranks) for pair in pairs):
        alike = [pair for pair in pairs if (str(pair.record.straggler), pair.record.ranks) == (straggler, ranks)]
        called = [in_words(names(pair.record), pair.record) for pair in alike]
        where = findings.settings.where(alike[0].record).replace(f"{straggler}, ", "")
        fair = [(name, _kept(pair)) for name, pair in zip(called, alike, strict=True) if not pair.disturbed]
        if fair:
            (first, most), *others = fair
            last = "".join(f", {name} {share}" for name, share in others[-1:])
            lines.append(sentence(f"{_when(straggler)} {first} keeps {most} of its throughput{last} {where}"))
        if between := [f"{name} keeps {share}" for name, share in fair[1:-1]]:
            lines.append(sentence(f"{listed(between)} {where}"))
        disturbed = [name for name, pair in zip(called, alike, strict=True) if pair.disturbed]
        doubt = f"not decided for {listed(disturbed)}: other load disturbed the measurement {where}"
        lines += [sentence(doubt)] if disturbed else []
    basis = [record for record in findings.records if record.straggler is not None and not record.disturbed]
    return Answer(lines[0], lines[1:], basis) if lines else None


def _when(straggler: str) -> str:
    slower = re.fullmatch(r"rank \d+ (\S+)x slower", straggler)
    return f"with one rank {slower[1]} times slower" if slower else f"where {straggler},"


def _kept(pair: Slowed) -> str:
    """Return the share of its throughput that a method keeps, with its interval."""
    low, high = pair.bounds
    bounds = "" if low is None or high is None else f" ({interval(low, high, _percent)})"
    return ("all" if pair.ratio.value >= WHOLE else _percent(pair.ratio.value)) + bounds


def _percent(share: Number) -> str:
    return NONE if share is None else f"{100 * share:.0f} %"


def stragglers_charts(findings: Findings) -> list[Intervals]:
    """Return the share of its throughput that each method keeps."""
    pairs = slowed(findings.launches)
    names = Names(pair.record for pair in pairs)
    labels = [", ".join((names(pair.record), plural(pair.record.ranks, "rank"))) for pair in pairs]
    axis = Axis("with / without the straggler")
    note = "Throughput with / without the straggler; bars are 95 % intervals. 1: none is lost."
    shares = [(pair.ratio.value, *pair.bounds) for pair in pairs]
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

    @property
    def share(self) -> float:
        """Share of the step in which ranks wait."""
        return _share(self.waiting)


def _mean(values: Vector) -> float:
    return float(values.mean())


COLUMNS: Final[tuple[Column[Waited], ...]] = (
    Column("case", lambda row: str(row.waiting.record.case)),
    Column("launch", lambda row: str(row.waiting.record.launch), importance="detail"),
    Column("ranks", lambda row: str(row.waiting.record.ranks)),
    Column("step", lambda row: seconds(_mean(row.waiting.step_seconds))),
    Column("wait", lambda row: seconds(_mean(row.waiting.waiting))),
    Column("wait / step", lambda row: digits(row.share), importance="answer"),
    Column("move bytes", lambda row: seconds(_mean(row.waiting.transfer)), importance="detail"),
    Column("move / step", lambda row: digits(_mean(row.waiting.transfer) / _mean(row.waiting.step_seconds))),
    Column("latest rank", lambda row: row.latest),
    Column("late by", lambda row: seconds(row.waiting.latest.seconds) if row.waiting.latest else NONE),
    Column(
        "verdict", lambda row: _verdict(row.waiting, disturbed=bool(row.launch.disturbed)), importance="answer"
    ),
)


def page(findings: Findings) -> Section:
    """Return one row per launch of a case in which ranks wait; of several launches the row names its own."""
    known = [
        Waited(waits, launch, _rank_name(findings, index, waits.latest.rank) if waits.latest else NONE)
        for index, (waits, launch) in enumerate(zip(findings.waiting, findings.launches, strict=True))
        if waits and _share(waits)
    ]
    known.sort(key=lambda row: (not row.waiting.late, -row.share))
    single = len({fields.get("launch") for fields in findings.run.described}) == 1
    columns = [column for column in COLUMNS if not (single and column.heading == "launch")]
    order = "late ranks first, then the longest share of waiting"
    made = [table(columns, known, notes=[NOTE], left=2 if single else 3, order=order)] if known else []
    return Section("Waiting and transfer", tables=made)


def _share(waiting: Waiting) -> float:
    step = _mean(waiting.step_seconds)
    return _mean(waiting.waiting) / step if step else 0.0


def _verdict(waiting: Waiting, *, disturbed: bool) -> str:
    if disturbed or waiting.late:
        return "disturbed" if disturbed else "late"
    if waiting.latest and waiting.record.stages:
        return "stages differ"
    return "within clock error" if waiting.latest and waiting.latest.seconds <= 2 * waiting.clock_error else NONE


def _rank_name(findings: Findings, index: int, rank: int) -> str:
    """Return the name of a rank, with its host where the ranks of the case are on several."""
    hosts = [] if findings.run.described[index].get("network") else findings.run.hosts_of(index)
    return f"rank {rank} on {hosts[rank]}" if len(set(hosts)) > 1 else f"rank {rank}"


def answer(findings: Findings) -> Answer | None:
    """Return one line per late rank: by how much it is late, and in how many of the cases that show it.

    A rank is late in a case if it is in all of its undisturbed launches.
    """
    cases: dict[str, list[tuple[str, float]]] = {}
    for index, (waiting, launch) in enumerate(zip(findings.waiting, findings.launches, strict=True)):
        simulated = launch.record.network and launch.record.straggler
        if (waiting or simulated) and not launch.disturbed:
            rank, late = launch.late_rank, launch.late_seconds
            pair = ("", 0.0) if rank is None or late is None else (_rank_name(findings, index, rank), late)
            cases.setdefault(str(launch.record.case), []).append(pair)
    ranks: dict[str, dict[str, float]] = {}
    for case, launches in cases.items():
        names = {name for name, _ in launches}
        if len(names) == 1 and "" not in names:
            ranks.setdefault(names.pop(), {})[case] = median(time for _, time in launches)
    lines = []
    for name, times in sorted(ranks.items(), key=lambda rank: max(rank[1].values()), reverse=True):
        low, high = seconds(min(times.values())), seconds(max(times.values()))
        by = low if low == high else f"{low} to {high}"
        where = f" in {'all' if len(times) == len(cases) else f'{len(times)} of'} {len(cases)} cases"
        lines.append(
            sentence(
                f"{name} is late by {by} per step{where * (len(cases) > 1)}: other ranks wait for this rank, not "
                "for its links"
            )
        )
    return Answer(lines[0], lines[1:]) if lines else None


WAITING: Final = Declaration(115, page, rows=EVIDENCE, answer=answer)
