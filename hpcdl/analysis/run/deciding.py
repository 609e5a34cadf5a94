"""Time to a target: which method reaches it first in each cell, whether that is decided, and performance profiles.

A cell is one network on one dataset under one set of conditions. Seeds are the sample. A seed reaches the target
between two evaluations; one that misses it does so, if ever, after its own training: each method has its budget
(:mod:`hpcdl.analysis.statistics.censored`). Shown times end at the shortest training of a method that missed the
target with some seeds (Royston & Parmar, BMC Med. Res. Methodol. 13, 2013). A method with fewer than
:data:`MIN_SEEDS` usable seeds leaves its cell open. Times of two methods with the same seed hardly
correlate, so that the test does not pair them.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from hpcdl.analysis.run.launches import Launch
from hpcdl.analysis.run.outcome import at_target, before_target
from hpcdl.analysis.run.record import ANY, Record
from hpcdl.analysis.statistics.censored import Delay, Times
from hpcdl.analysis.statistics.differences import ALPHA, adjusted
from hpcdl.analysis.statistics.estimates import NOTHING, Interval, Vector, bounded_exp

MIN_EFFECT: Final = 1.05
"""Ratio of times below which two methods are tied."""
MIN_SEEDS: Final = 3
"""Usable seeds of a method, at least: neither disturbed, failed nor without an evaluation."""
WIDEST: Final = 10.0
"""Ratio to the best time up to which performance profiles are looked at."""


def is_evaluated(launch: Launch) -> bool:
    """Return True if a launch evaluated on the test set."""
    return len(launch.evaluations) > 0


@dataclass(frozen=True, eq=False)
class Candidate:
    """One method at one scale, all seeds and launches. On one rank all aggregations are the same program."""

    record: Record
    every: Sequence[Launch]
    """Also the failed ones."""

    @cached_property
    def launches(self) -> list[Launch]:
        """Launches that did not fail."""
        return [launch for launch in self.every if not launch.record.error]

    @property
    def is_evaluated(self) -> bool:
        """True if every launch evaluated on the test set."""
        return bool(self.launches) and all(map(is_evaluated, self.launches))

    @cached_property
    def seeds(self) -> list[tuple[list[Launch], str]]:
        """Usable launches of each seed, or the cause why none is: disturbed, failed, not evaluated."""
        by_seed: dict[object, list[Launch]] = {}
        for launch in sorted(self.every, key=lambda launch: bool(launch.record.error)):
            by_seed.setdefault(launch.record.seed, []).append(launch)
        seeds = []
        for launches in by_seed.values():
            evaluated = list(filter(is_evaluated, launches))
            failed = any(launch.record.error for launch in launches)
            cause = "disturbed" if evaluated else "failed" if failed else "not evaluated"
            seeds.append(([launch for launch in evaluated if not launch.disturbed], cause))
        return seeds

    @property
    def usable(self) -> list[list[Launch]]:
        """Launches that count, of each seed that has any."""
        return [launches for launches, _ in self.seeds if launches]

    @property
    def lost(self) -> Mapping[str, int]:
        """Seeds that can't be used, by cause."""
        return Counter(cause for launches, cause in self.seeds if not launches)

    @cached_property
    def seconds(self) -> Vector:
        """Time to the target of each usable seed, the median over its launches; infinite where it missed it."""
        return self._medians(lambda launch: at_target(launch, "training_seconds"))

    @cached_property
    def since(self) -> Vector:
        """Time of the last evaluation below the target, likewise; infinite where training diverged."""
        return self._medians(
            lambda launch: np.inf if launch.diverged else before_target(launch, "training_seconds")
        )

    def _medians(self, number: Callable[[Launch], float]) -> Vector:
        return np.array([np.median([number(launch) for launch in seed]) for seed in self.usable], np.float64)

    @property
    def missed(self) -> int:
        """Usable seeds that missed the target."""
        return int(np.isinf(self.seconds).sum())

    @property
    def state(self) -> str:
        """``too few seeds``, ``not reached`` by any, ``some missed``, or ``reached`` by all."""
        if len(self.seconds) < MIN_SEEDS:
            return "too few seeds"
        return {0: "reached", len(self.seconds): "not reached"}.get(self.missed, "some missed")

    @property
    def training(self) -> float:
        """Longest training of a usable launch, up to its last evaluation (s); 0 without one."""
        ends = (float(launch.evaluations["training_seconds"].max()) for seed in self.usable for launch in seed)
        return max(ends, default=0.0)

    def mean(self, budget: float = np.inf) -> float:
        """Return the geometric mean of the seeds' times up to ``budget`` (s)."""
        return float(np.exp(np.log(np.minimum(self.seconds, budget)).mean())) if len(self.seconds) else np.inf

    def bounds(self, longest: float) -> Times:
        """Return the bounds of the seeds' times; a diverged one missed the target in the ``longest`` training."""
        with np.errstate(divide="ignore"):
            return Times(np.log(np.minimum(self.since, longest)), np.log(self.seconds))

    def median_of(self, column: str) -> float | None:
        """Return the median over launches of a column of the evaluations at the target."""
        values = [at_target(launch, column) for seed in self.usable for launch in seed]
        return float(np.median(values)) if np.isfinite(values).all() else None


@dataclass(frozen=True)
class Field:
    """Candidates that may be compared: one dataset on one network, or a measured one, with the same stragglers."""

    dataset: str
    conditions: tuple[str, ...]
    """In words, what not all fields of the run share."""
    candidates: Sequence[Candidate]


def fields_of(launches: Iterable[Launch]) -> list[Field]:
    """Return the training cases by dataset and conditions; only within a field they are comparable.

    Cases without communication on more than one rank are left out.
    """
    groups: dict[tuple[str, object, object], dict[object, list[Launch]]] = {}
    conditions_of: dict[tuple[str, object, object], dict[str, str]] = {}
    for launch in launches:
        record = launch.record
        if record.kind == "train" and not (record.independent and record.ranks > 1):
            field = (str(record.dataset), record.network, record.conditions("trace"))
            conditions_of.setdefault(field, {key: word for key, word in record.words.items() if key != "trace"})
            group = groups.setdefault(field, {})
            group.setdefault((record.problem(), record.method, record.ranks), []).append(launch)
    every = [set(condition.values()) for condition in conditions_of.values()]
    shared = set.intersection(*every) if every else set()
    return [
        Field(
            field[0],
            tuple(word for word in conditions_of[field].values() if word not in shared),
            [_candidate(together) for together in group.values()],
        )
        for field, group in groups.items()
    ]


def _candidate(together: Sequence[Launch]) -> Candidate:
    """Return the case of the first, with any aggregation where the others have another."""
    record = together[0].record
    if len({launch.record.aggregation for launch in together}) > 1:
        record = record.but(aggregation=ANY)
    return Candidate(record, together)


@dataclass(frozen=True)
class Decision:
    """The methods of a cell, those first that reach the target soonest within its budget."""

    field: Field
    places: Sequence[Candidate]
    rivals: Sequence[Candidate]
    """Methods that are not distinguished from the first, or by less than :data:`MIN_EFFECT`."""
    delay: Delay | None
    """Of the second after the first; None where they cannot be compared."""

    @property
    def record(self) -> Record:
        """The case of the first method."""
        return self.places[0].record

    @property
    def budget(self) -> float:
        """Time up to which times count (s); infinite if no seed missed the target."""
        return _budget(self.places)

    @cached_property
    def lead(self) -> Interval:
        """Time of the second by that of the first; infinite bounds where a budget ended before."""
        if self.delay is None:
            return NOTHING
        return Interval(*map(bounded_exp, (self.delay.value, *self.delay.bounds())))

    @property
    def open(self) -> list[Candidate]:
        """Methods with too few usable seeds."""
        return [candidate for candidate in self.places if candidate.state == "too few seeds"]

    @property
    def verdict(self) -> str:
        """``not decided``, ``not reached``, ``undecided``, ``alone``, ``tied``, or ``decided``.

        Not decided: too few usable seeds. Not reached: by any method. Undecided: one that never reached it has too
        few seeds, or trained too briefly, to be ruled out. Alone: no other method reached the target with a seed.
        """
        if self.open:
            return "not decided"
        if self.places[0].state == "not reached":
            return "not reached"
        if self.unfinished:
            return "undecided"
        if self.rivals:
            return "tied"
        return "alone" if self.places[1].state == "not reached" else "decided"

    @property
    def unfinished(self) -> list[Candidate]:
        """Methods that never reached the target, but are not distinguished from the first."""
        return [candidate for candidate in self.rivals if candidate.state == "not reached"]

    @property
    def is_won(self) -> bool:
        """True if the first is distinguished from all others; if it is alone, with every seed."""
        return self.verdict == "decided" or (self.verdict == "alone" and not self.places[0].missed)

    @property
    def ratios(self) -> list[float]:
        """Time of each candidate by the least one; infinite for a method that missed the target with a seed."""
        means = np.array([candidate.mean() for candidate in self.places])
        return list(means / means.min()) if np.isfinite(means).any() else [np.inf] * len(means)


def decisions(fields: Iterable[Field]) -> list[Decision]:
    """Decide each cell with at least two methods and a target.

    The first is compared with each other method. p-values of all cells are adjusted together (Benjamini &
    Hochberg).
    """
    cells = [(field, _ordered(places)) for field in fields for places in _cells(field)]
    pairs = [
        (number, candidate, Delay(places[0].bounds(longest), candidate.bounds(longest)))
        for number, (_, places) in enumerate(cells)
        for longest in [max(candidate.training for candidate in places)]
        for candidate in places[1:]
        if places[0].state not in {"too few seeds", "not reached"} and candidate.state != "too few seeds"
    ]
    rivals: dict[int, list[Candidate]] = {}
    delays: dict[int, Delay] = {}
    p_values = adjusted(np.array([delay.p for _, _, delay in pairs]))
    for (number, candidate, delay), p in zip(pairs, p_values, strict=True):
        delays.setdefault(number, delay)
        if p >= ALPHA or delay.value < math.log(MIN_EFFECT):
            rivals.setdefault(number, []).append(candidate)
    return [Decision(*cell, rivals.get(number, []), delays.get(number)) for number, cell in enumerate(cells)]


def _cells(field: Field) -> list[list[Candidate]]:
    """Return the methods of each cell with several, and a target that one of them was evaluated for."""
    groups: dict[object, list[Candidate]] = {}
    for candidate in field.candidates:
        record = candidate.record
        if record.target_accuracy is not None:
            groups.setdefault((record.model, record.ranks, record.target_accuracy), []).append(candidate)
    return [cell for cell in groups.values() if len(cell) > 1 and any(len(each.seconds) for each in cell)]


def _budget(places: Iterable[Candidate]) -> float:
    return min((candidate.training for candidate in places if candidate.state == "some missed"), default=np.inf)


def _ordered(places: Sequence[Candidate]) -> list[Candidate]:
    """Return the methods by their time up to the budget; those that can't be compared last."""
    budget, last = _budget(places), ("not reached", "too few seeds")
    return sorted(places, key=lambda method: (method.state in last, method.mean(budget), method.mean()))


def area(ratios: Sequence[float]) -> float:
    """Return the area under a method's performance profile (Dolan & More 2002), from 0 to 1.

    The profile is the share of cells in which the method's time is at most t times the best; the area is over the
    logarithm of t from 1 to :data:`WIDEST`. 1: the best everywhere.
    """
    lost = np.minimum(np.log(np.maximum(ratios, 1)) / np.log(WIDEST), 1)
    return float(1 - lost.mean())
