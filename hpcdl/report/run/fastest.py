"""Sentences on the fastest scheme of a collective: over message sizes, or over ranks if there is one size."""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from hpcdl.analysis.run.record import Record
from hpcdl.analysis.statistics.estimates import Interval
from hpcdl.report.formats.cells import bounded, plural, volume
from hpcdl.report.run.grouping import time_ratio
from hpcdl.report.run.literature import link_title, title_of
from hpcdl.report.run.method_names import scheme_name
from hpcdl.report.run.operations import Group, place, ranked, sizes

LIBRARY: Final = "native"
"""Scheme that calls the MPI library, with which others are compared."""


def collective_name(name: str) -> str:
    """Return a collective with its article: an allreduce, a reduce-scatter."""
    spelling = name.replace("_", "-")
    return f"{'an' if spelling[0] in 'aeiou' else 'a'} {spelling}"


def times_as_fast(record: Record, other: Record) -> Interval:
    """Return the time of ``other`` / that of ``record``, with a 95 % interval over launches.

    With one launch the bounds are of the intervals over its repetitions; simulated times have none.
    """
    if record.network:
        value = (other.time_p50_seconds or 0.0) / (record.time_p50_seconds or math.nan)
        return Interval(value, math.nan, math.nan)
    ratio = time_ratio([other], [record])
    low, high = other.time_p50_low_seconds, other.time_p50_high_seconds
    least, most = record.time_p50_low_seconds, record.time_p50_high_seconds
    if math.isfinite(ratio.low) or low is None or high is None or least is None or most is None:
        return ratio
    return Interval(ratio.value, low / most, high / least)


class Point(NamedTuple):
    """Comparable operations of one size, or on one number of ranks."""

    shown: str
    """The size, or the number of ranks."""
    peers: Sequence[Record]

    @property
    def best(self) -> list[Record]:
        """The fastest scheme and those that are tied with it; empty if that is not decided."""
        return [record for record in ranked(self.peers) if place(record, self.peers)]

    @property
    def others(self) -> list[Record]:
        """Times with which the winner is compared: the library's, then those that are slower."""
        best = [id(record) for record in self.best]
        slower = [record for record in ranked(self.peers) if id(record) not in best]
        return sorted(slower, key=lambda record: record.aggregation != LIBRARY)


class Segment(NamedTuple):
    """Successive points with one answer."""

    points: Sequence[Point]
    schemes: Sequence[str]
    """Schemes that are the fastest, or tied with it, at all points; empty: undecided."""

    @property
    def alone(self) -> bool:
        """True if one scheme is the fastest at all points."""
        return all(len(point.best) == 1 for point in self.points)


class Family(NamedTuple):
    """Operations that one sentence is about, which differ in size, or in the number of ranks."""

    subject: str
    """Collective, ranks or size, and conditions."""
    title: str
    """The subject as a table has it."""
    points: Sequence[Point]
    unit: str = ""
    """Noun of what differs, ``ranks``; empty for sizes, which have their unit."""

    @property
    def segments(self) -> list[Segment]:
        """As few segments of the points as possible; points with fewer than two times are left out."""
        joined: list[Segment] = []
        for point in (point for point in self.points if len(ranked(point.peers)) > 1):
            names = [scheme_name(record) for record in point.best]
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

    def _span(self, points: Sequence[Point]) -> str:
        begin = "on" if self.unit else "at" if len(points) == 1 else "from"
        return f"{begin} {' to '.join(dict.fromkeys((points[0].shown, points[-1].shown)))} {self.unit}".rstrip()

    def _clause(self, segment: Segment) -> str:
        span = self._span(segment.points)
        if not segment.schemes:
            return f"the fastest scheme is not decided {span}"
        name = title_of(segment.schemes[0])
        if segment.alone:
            return f"{name} is fastest {span}"
        more = "more than 1 % faster" if segment.points[-1].best[0].network else "measurably faster"
        return f"no scheme is {more} than {name} {span}"

    def _gain(self, segment: Segment) -> str:
        """Return how many times as fast the winner is as the library, else as the next one, at the last point.

        A scheme that is tied somewhere is compared with the library only.
        """
        *_, point = segment.points
        others = point.others if segment.schemes else []
        if not others or not (segment.alone or others[0].aggregation == LIBRARY):
            return ""
        winner = next(record for record in point.best if scheme_name(record) == segment.schemes[0])
        where = f" {self._span([point])}" if len(segment.points) > 1 else ""
        return f", {_gain(winner, others[0])}{where}"

    def _undecided(self) -> str:
        """Return the reason, and the lowest median at the last point that has a time of the library."""
        points = [point for segment in self.segments for point in segment.points]
        with_library = [point for point in points if point.others[0].aggregation == LIBRARY]
        point = (with_library or points)[-1]
        first, reference = ranked(point.peers)[0], point.others[0]
        lowest = f"for {self.subject} {title_of(scheme_name(first))} has the lowest median {self._span([point])}"
        shared = " in which ranks share cores" if any(map(_shares_cores, point.peers)) else ""
        doubt = f"Not decided (too few undisturbed launches{shared})"
        if all(record.launches == 1 for record in point.peers):
            doubt = f"One launch{shared} decides nothing"
        gain = "" if shared or reference is first else f", {_gain(first, reference)}"
        return f"{doubt}: {lowest}{gain}."


def _gain(record: Record, other: Record) -> str:
    return f"{bounded(*times_as_fast(record, other))} times as fast as {title_of(scheme_name(other))}"


def _shares_cores(record: Record) -> bool:
    """Return True if times are those of waiting for a core; on emulated links those of the links are longer."""
    return bool(record.oversubscribed and "emulated" not in record.marks)


def families(groups: dict[Group, list[Record]]) -> list[tuple[Family, list[Record]]]:
    """Return the families of the groups of a run, each with its records.

    The first are those whose ranks do not share cores, and of one collective those of the most ranks.
    """
    alike: dict[Group, dict[Group, list[Record]]] = {}
    for group, rows in groups.items():
        alike.setdefault(group._replace(ranks=0), {})[group] = rows
    described = []
    for family, of_ranks in alike.items():
        every = [record for rows in of_ranks.values() for record in rows]
        if len(of_ranks) > 1 and len(by_size := sizes(every)) == 1:
            points = [Point(str(group.ranks), rows) for group, rows in of_ranks.items()]
            size = volume(next(iter(by_size)))
            described.append((Family(_subject(family, f"of {size}"), family.titled(size), points, "ranks"), every))
            continue
        for group, rows in sorted(of_ranks.items(), key=lambda item: -item[0].ranks):
            points = [Point(volume(size), peers) for size, peers in sizes(rows).items()]
            subject = _subject(group, f"on {plural(group.ranks, 'rank')}")
            described.append((Family(subject, group.title, points), rows))
    return sorted(described, key=lambda item: any(map(_shares_cores, item[1])))


def _subject(group: Group, on: str) -> str:
    """Return collective, ranks or size, and in parentheses what else the group is about."""
    words = [word.replace(f"simulated on {group.network}", link_title(group.network)) for word in group.conditions]
    words += [group.dtype] if group.dtype not in {"", "float32"} else []
    noted = f" ({', '.join(words)})" if words else ""
    return f"{collective_name(group.collective)} {on}{noted}"
