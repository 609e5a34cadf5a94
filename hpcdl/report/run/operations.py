"""Single operations, grouped by comparability; the fastest of each group; charts of bandwidth and time."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from hpcdl.analysis.run.record import Record, group_by_key, judge_methods
from hpcdl.analysis.statistics.estimates import NOTHING, Interval
from hpcdl.analysis.statistics.judging import CHANCE, Judged
from hpcdl.registry import label
from hpcdl.report.formats.cells import bounded, percent, plural, rate, seconds, volume, whole
from hpcdl.report.formats.document import Axis, Lines, Point
from hpcdl.report.run.declaration import LOWEST, curves
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.names import link_title, scheme_name, title_of

CHECKED: Final = {True: "yes", False: "NO", None: "not checked"}
"""Cell for a result that was right, wrong or not checked."""
BEST: Final = "fastest"
TIED: Final = "tied"


class Group(NamedTuple):
    """Comparable operations: one collective on as many ranks, all measured or all on one simulated network."""

    collective: str
    ranks: int
    dtype: str
    network: str
    conditions: tuple[str, ...]

    @property
    def title(self) -> str:
        """Collective, ranks, type and conditions in words."""
        return self.titled(plural(self.ranks, "rank"))

    def titled(self, subject: str) -> str:
        """Return the title with another subject instead of the ranks."""
        return ", ".join((self.collective, subject, self.dtype or "bytes", *self.conditions))


def grouped(records: Iterable[Record], kind: str) -> dict[Group, list[Record]]:
    """Return the records of a kind by group, ascending by size within each; those of training's sum come first."""
    groups: dict[Group, list[Record]] = {}
    for record in sorted(records, key=lambda record: record.message_bytes or 0):
        if record.kind == kind:
            given = record.settings
            own = [f"{key}={label(given[key])}" for key in ("backend", "threads", "counts") if key in given]
            dtype, network, conditions = record.dtype or "", record.network or "", (*record.words.values(), *own)
            group = Group(record.collective or kind, int(record.ranks), dtype, network, conditions)
            groups.setdefault(group, []).append(record)
    ordered = sorted(
        groups, key=lambda group: (group.network, group.collective != "allreduce", group.collective, group.ranks)
    )
    return {group: groups[group] for group in ordered}


def sizes(rows: Sequence[Record]) -> dict[int, list[Record]]:
    """Return the records of a group by size, ascending."""
    return group_by_key((record.message_bytes or 0, record) for record in rows)


def ranked(records: Iterable[Record], *, disturbed: bool = False) -> list[Record]:
    """Return the undisturbed, or disturbed records with a time and no wrong result, the fastest first."""
    kept = [record for record in records if record.time_p50_seconds and record.correct is not False]
    return sorted(
        (record for record in kept if bool(record.disturbed) == disturbed),
        key=lambda record: record.time_p50_seconds or 0.0,
    )


class Standing(NamedTuple):
    """Comparable operations of one size: the fastest, and the verdicts on the others."""

    peers: Sequence[Record]
    judged: Mapping[int, Judged]
    """The fastest against each other one that has a time, by the identity of its record."""

    def place(self, record: Record) -> str:
        """Return ``fastest``, or ``tied`` with it; empty for all others, and where nothing is decided.

        A scheme of one launch has no place, and another is the fastest only if it beat all.
        """
        ordered = ranked(self.peers)
        if len(ordered) < 2 or record not in ordered:
            return ""
        reasons = {verdict.reason for verdict in self.judged.values()}
        if "one launch" in reasons and len(ordered[0].samples or ()) < 2:
            return ""
        tied = {other for other, one in self.judged.items() if one.reason == CHANCE or one.word == "equal"}
        if record is not ordered[0]:
            return TIED if id(record) in tied else ""
        return TIED if tied else "" if reasons - {""} else BEST

    @property
    def best(self) -> list[Record]:
        """The fastest scheme and those that are tied with it; empty if that is not decided."""
        return [record for record in ranked(self.peers) if self.place(record)]

    @property
    def others(self) -> list[Record]:
        """Times with which the winner is compared: the library's, then those that are slower."""
        best = self.best
        slower = [record for record in ranked(self.peers) if record not in best]
        return sorted(slower, key=lambda record: record.aggregation != LIBRARY)

    def gain(self, record: Record, other: Record) -> Interval:
        """Return how many times as fast one is as another."""
        known = self.judged.get(id(other)) if record is ranked(self.peers)[0] else None
        return (known or judge_methods([[[record], [other]]], Record.time_p50_seconds)[0][0]).swapped.size


def standings(findings: Findings) -> dict[tuple[Group, int], Standing]:
    """Return the standing of the collectives of each group, by size; all are judged together."""
    return findings.once(_standings)


def _standings(findings: Findings) -> dict[tuple[Group, int], Standing]:
    groups = grouped(findings.records, "collective")
    peers = {(group, size): some for group, rows in groups.items() for size, some in sizes(rows).items()}
    timed = {key: ordered for key, some in peers.items() if len(ordered := ranked(some)) > 1}
    families = [[[record] for record in ordered] for ordered in timed.values()]
    verdicts = judge_methods(families, Record.time_p50_seconds, chosen=True)
    judged = {
        key: dict(zip(map(id, others), some, strict=True))
        for (key, (_, *others)), some in zip(timed.items(), verdicts, strict=True)
    }
    return {key: Standing(some, judged.get(key, {})) for key, some in peers.items()}


def collective_time(findings: Findings) -> list[Lines]:
    """Return times over size and over ranks, first over what has more values; the allreduce comes first."""
    groups = grouped(findings.records, "collective")
    networks = {group.network for group in groups}
    over_size = [
        (
            f"Time over size: {group.title.replace(f'simulated on {group.network}', 'simulated')}",
            ", ".join(filter(None, (scheme_name(record), group.network if len(networks) > 1 else ""))),
            record.message_bytes or 0,
            record,
        )
        for group, rows in _largest_first(groups)
        for record in ranked(rows)
    ]
    over_ranks = [
        (f"Time over ranks: {group.titled(volume(size))}", scheme_name(record), group.ranks, record)
        for group, rows in groups.items()
        for size, peers in sizes(rows).items()
        for record in ranked(peers)
    ]
    over_ranks.sort(key=lambda timed: -(timed[-1].message_bytes or 0))
    most_sizes = max((len(sizes(rows)) for rows in groups.values()), default=0)
    of_sizes, of_ranks = _times(Axis("size", volume, 2), over_size), _times(Axis("ranks", whole, 2), over_ranks)
    many_sizes = most_sizes >= len({group.ranks for group in groups})
    return [*of_sizes, *of_ranks] if many_sizes else [*of_ranks, *of_sizes]


def _times(axis: Axis, timed: Iterable[tuple[str, str, float, Record]]) -> list[Lines]:
    """Return one chart per title; each record has a title, the name of a line, and a place on the axis."""
    charts: dict[str, dict[str, list[Point]]] = {}
    notes = dict[str, str]()
    for title, name, place, record in timed:
        bounds = (record.time_p50_low_seconds, record.time_p50_high_seconds)
        point = Point(place, record.time_p50_seconds or 0.0, *(bounds if None not in bounds else ()))
        charts.setdefault(title, {}).setdefault(name, []).append(point)
        measured = record.log or "Median time of the slowest rank; bars are 95 % intervals."
        notes[title] = "Simulated times." if record.network else measured
    axes = axis, Axis("time", seconds, 10)
    return [chart for title in charts for chart in curves(title, axes, charts[title], notes[title], best=LOWEST)]


def bus_bandwidth(findings: Findings) -> list[Lines]:
    """Return bus bandwidth over size, / the rate of the links if it is known."""
    link, made = findings.link, list[Lines]()
    title, axis = "Bus bandwidth", Axis("busbw", rate, 10)
    note = "Bus bandwidth as nccl-tests defines it; bars are 95 % intervals."
    if link:
        title, axis = "Share of the link's rate", Axis("busbw / rate of the link", percent)
        kind = "emulated link" if findings.run.environment.get("emulated") else "link"
        note = f"Rate of a host's {kind}: {rate(link)}. {note}"
    whole_link = {"the link's rate": lambda _size: 1.0} if link else None
    for group, rows in _largest_first(grouped(findings.records, "collective")):
        points: dict[str, list[Point]] = {}
        for record in rows:
            busbw = bandwidth(record, link)
            if math.isfinite(busbw.value) and record.correct is not False:
                point = busbw if math.isfinite(busbw.low) else busbw[:1]
                points.setdefault(scheme_name(record), []).append(Point(record.message_bytes or 0, *point))
        axes = Axis("size", volume, 2), axis
        made += curves(f"{title}: {group.title}", axes, points, note, references=whole_link)
    return made


def _largest_first(groups: dict[Group, list[Record]]) -> list[tuple[Group, list[Record]]]:
    return sorted(groups.items(), key=lambda item: (item[0].collective != "allreduce", -item[0].ranks))


def bandwidth(record: Record, link: float) -> Interval:
    """Return the bus bandwidth with the interval of its time, / the rate of the links if it is not 0.

    NaN of ranks on one host, which use no link, and of simulated ones.
    """
    if link and not record.link_bytes_per_second:
        return NOTHING
    middle = record.time_p50_seconds or math.nan
    times = middle, record.time_p50_high_seconds, record.time_p50_low_seconds
    whole = (record.busbw_bytes_per_second or math.nan) * middle / (link or 1.0)
    return Interval(*(whole / (time or math.nan) for time in times))


LIBRARY: Final = "native"
"""Scheme that calls the MPI library, with which others are compared."""


def collective_name(name: str) -> str:
    """Return a collective with its article: an allreduce, a reduce-scatter."""
    spelling = name.replace("_", "-")
    return f"{'an' if spelling[0] in 'aeiou' else 'a'} {spelling}"


class Comparable(NamedTuple):
    """Comparable operations of one size, or on one number of ranks."""

    shown: str
    """The size, or the number of ranks."""
    standing: Standing

    @property
    def peers(self) -> Sequence[Record]:
        """The operations."""
        return self.standing.peers


class Segment(NamedTuple):
    """Successive points with one answer."""

    points: Sequence[Comparable]
    schemes: Sequence[str]
    """Schemes that are the fastest, or tied with it, at all points; empty: undecided."""

    @property
    def alone(self) -> bool:
        """True if one scheme is the fastest at all points."""
        return all(len(point.standing.best) == 1 for point in self.points)


class Family(NamedTuple):
    """Operations that one sentence is about, which differ in size, or in the number of ranks."""

    subject: str
    """Collective, ranks or size, and conditions."""
    title: str
    """The subject as a table has it."""
    points: Sequence[Comparable]
    unit: str = ""
    """Noun of what differs, ``ranks``; empty for sizes, which have their unit."""

    @property
    def segments(self) -> list[Segment]:
        """As few segments of the points as possible; points with fewer than two times are left out."""
        joined: list[Segment] = []
        for point in (point for point in self.points if len(ranked(point.peers)) > 1):
            names = [scheme_name(record) for record in point.standing.best]
            common = [name for name in names if joined and name in joined[-1].schemes]
            if joined and (common or not (names or joined[-1].schemes)):
                joined[-1] = Segment([*joined[-1].points, point], common)
            else:
                joined.append(Segment([point], names))
        return joined

    @property
    def decided(self) -> bool:
        """True if a scheme is the fastest, or tied with it, at any point."""
        return any(segment.schemes for segment in self.segments)

    def sentences(self) -> list[str]:
        """Return the answer over all points in a sentence, and one on each segment between the first and last."""
        if not self.decided:
            return [self._undecided()] if self.segments else []
        *before, last = self.segments
        clauses = [*map(self._clause, before[:1]), self._clause(last) + self._gain(last)]
        between = [f"For {self.subject} {self._clause(segment)}{self._gain(segment)}." for segment in before[1:]]
        return [f"For {self.subject} {', and '.join(clauses)}.", *between]

    def _span(self, points: Sequence[Comparable]) -> str:
        begin = "on" if self.unit else "at" if len(points) == 1 else "from"
        return f"{begin} {' to '.join(dict.fromkeys((points[0].shown, points[-1].shown)))} {self.unit}".rstrip()

    def _clause(self, segment: Segment) -> str:
        span = self._span(segment.points)
        if not segment.schemes:
            return f"the fastest scheme is not decided {span}"
        name = title_of(segment.schemes[0])
        if segment.alone:
            return f"{name} is fastest {span}"
        return f"{name} is fastest, or tied, {span}"

    def _gain(self, segment: Segment) -> str:
        """Return how many times as fast the winner is as the library, else as the next one, at the last point.

        A scheme that is tied somewhere is compared with the library only.
        """
        *_, point = segment.points
        others = point.standing.others if segment.schemes else []
        if not others or not (segment.alone or others[0].aggregation == LIBRARY):
            return ""
        winner = next(record for record in point.standing.best if scheme_name(record) == segment.schemes[0])
        where = f" {self._span([point])}" if len(segment.points) > 1 else ""
        return f", {_gain(point, winner, others[0])}{where}"

    def _undecided(self) -> str:
        """Return the reason, and the lowest median at the last point that has a time of the library."""
        points = [point for segment in self.segments for point in segment.points]
        with_library = [point for point in points if point.standing.others[0].aggregation == LIBRARY]
        point = (with_library or points)[-1]
        first, reference = ranked(point.peers)[0], point.standing.others[0]
        lowest = f"for {self.subject} {title_of(scheme_name(first))} has the lowest median {self._span([point])}"
        shared = " in which ranks share cores" if any(map(_shares_cores, point.peers)) else ""
        doubt = f"Not decided (too few undisturbed launches{shared})"
        if all(record.launches == 1 for record in point.peers):
            doubt = f"One launch{shared} decides nothing"
        gain = "" if shared or reference is first else f", {_gain(point, first, reference)}"
        return f"{doubt}: {lowest}{gain}."


def _gain(point: Comparable, record: Record, other: Record) -> str:
    size = bounded(*point.standing.gain(record, other))
    return f"{size} times as fast as {title_of(scheme_name(other))}"


def _shares_cores(record: Record) -> bool:
    """Return True if times are those of waiting for a core; on emulated links those of the links are longer."""
    return bool(record.oversubscribed and "emulated" not in record.marks)


def families(findings: Findings) -> list[tuple[Family, list[Record]]]:
    """Return the families of the collectives of a run, each with its records.

    The first are those whose ranks do not share cores, and of one collective those of the most ranks.
    """
    described, known, groups = [], standings(findings), grouped(findings.records, "collective")
    for family, of_ranks in group_by_key((group._replace(ranks=0), group) for group in groups).items():
        every = [record for group in of_ranks for record in groups[group]]
        if len(of_ranks) > 1 and len(by_size := sizes(every)) == 1:
            (size,) = by_size
            points = [Comparable(str(group.ranks), known[group, size]) for group in of_ranks]
            described.append(
                (
                    Family(_subject(family, f"of {volume(size)}"), family.titled(volume(size)), points, "ranks"),
                    every,
                )
            )
            continue
        for group in sorted(of_ranks, key=lambda group: -group.ranks):
            points = [Comparable(volume(size), known[group, size]) for size in sizes(groups[group])]
            subject = _subject(group, f"on {plural(group.ranks, 'rank')}")
            described.append((Family(subject, group.title, points), groups[group]))
    return sorted(described, key=lambda item: any(map(_shares_cores, item[1])))


def _subject(group: Group, on: str) -> str:
    """Return collective, ranks or size, and in parentheses what else the group is about."""
    words = [word.replace(f"simulated on {group.network}", link_title(group.network)) for word in group.conditions]
    words += [group.dtype] if group.dtype not in {"", "float32"} else []
    noted = f" ({', '.join(words)})" if words else ""
    return f"{collective_name(group.collective)} {on}{noted}"
