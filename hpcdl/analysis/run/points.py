"""Launches grouped into the points that become records."""

from collections.abc import Iterable
from dataclasses import dataclass

from hpcdl.analysis.run.launches import Launch, undisturbed
from hpcdl.analysis.run.record import Key, Record
from hpcdl.analysis.statistics.estimates import Middle, Vector


class AmbiguousCaseError(Exception):
    """Two cases that nothing tells apart; pooling them would be a silent mistake."""


@dataclass(frozen=True)
class Point:
    """The launches of one configuration at one scale with one seed; it becomes one record."""

    key: Key
    problem: Key
    aggregation: str
    ranks: int
    seed: int | None
    launches: list[Launch]

    @property
    def record(self) -> Record:
        """The case as its first launch describes it."""
        return self.launches[0].record

    @property
    def timed(self) -> list[Launch]:
        """Launches whose times count: the undisturbed ones; all if all are disturbed."""
        return undisturbed(self.launches)

    @property
    def seconds(self) -> list[Vector]:
        """Step times, one vector per launch whose times count."""
        return [launch.seconds for launch in self.timed]

    @property
    def middle(self) -> Middle:
        """Statistic of the step times."""
        return self.launches[0].middle

    @property
    def is_training(self) -> bool:
        """True if its steps are those of a training, measured or replayed."""
        return self.record.is_training


def points_of(launches: Iterable[Launch]) -> list[Point]:
    """Group launches by configuration, ranks and seed. Raises AmbiguousCaseError."""
    points: dict[Key, Point] = {}
    for launch in launches:
        record = launch.record
        key, ranks, seed = record.configuration(), record.ranks, record.seed
        empty = Point(key, record.problem(), record.aggregation or "none", ranks, seed, [])
        point = points.setdefault((key, ranks, seed), empty)
        for other in point.launches:
            # One launch runs a case once: two with one key differ in something that no key tells.
            if other.record.launch == record.launch:
                raise AmbiguousCaseError(
                    f"cases {other.record.case!r} and {record.case!r} (launch "
                    f"{record.launch}) differ in nothing the analysis knows; "
                    "what tells them apart belongs in the field 'settings'"
                )
        point.launches.append(launch)
    return list(points.values())
