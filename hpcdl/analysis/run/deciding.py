"""Methods that may be compared: which is the best by a criterion, and which reaches a target first.

A candidate is one method at one scale; seeds are its sample. A field has the candidates of one dataset under one
set of conditions, a configuration those of a field with one model, scale and target. A seed reaches the target
between two evaluations; one that misses it does so, if ever, after its own training: each method has its budget
(:mod:`hpcdl.analysis.statistics.judging`). Shown times end at the shortest training of a method that missed the
target with some seeds (Royston & Parmar, BMC Med. Res. Methodol. 13, 2013). A method with fewer than
:data:`MIN_SEEDS` usable seeds leaves its configuration open. Times of two methods with the same seed hardly
correlate, so that the test does not pair them.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from hpcdl.analysis.run.launches import Launch, at_target, before_target
from hpcdl.analysis.run.record import ANY, Key, Record, group_by_key
from hpcdl.analysis.statistics.differences import ALPHA, Vector, adjusted
from hpcdl.analysis.statistics.estimates import NOTHING, Interval, bounded_exp
from hpcdl.analysis.statistics.judging import Delay, Side, Times, judge

MIN_EFFECT: Final = 1.05
"""Ratio of times below which two methods are tied."""
MIN_SEEDS: Final = 3
"""Usable seeds of a method, at least: neither disturbed, failed nor without an evaluation."""
WIDEST: Final = 10.0
"""Ratio to the best time up to which performance profiles are looked at."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """One method at one scale: its launches by seed. On one rank all aggregations are the same program."""

    seeds: Sequence[Sequence[Launch]]

    @cached_property
    def record(self) -> Record:
        """The case of the first launch, with any aggregation if the others have another."""
        records = [launch.record for launches in self.seeds for launch in launches]
        several = len({record.aggregation for record in records}) > 1
        return records[0].but(aggregation=ANY) if several else records[0]

    @cached_property
    def launches(self) -> list[Launch]:
        """The launches that did not fail."""
        return [launch for launches in self.seeds for launch in launches if not launch.record.error]

    def by_seed(self, value: Callable[[Launch], float]) -> Side:
        """Return the mean of a value over the sound launches of each seed; -infinity if one diverged."""
        seeds = [[launch for launch in launches if not launch.record.error] for launches in self.seeds]
        known = {some[0].record.seed: [*map(value, some)] for some in seeds if some}
        return Side(
            {seed: float(np.mean(some)) for seed, some in known.items() if not np.isnan(some).any()}, "seed"
        )

    def by_launch(self, value: Callable[[Launch], float]) -> Side:
        """Return the median of a value over the seeds of each launch; of one launch, the values by seed."""
        values = [(launch.record.launch, launch.record.seed, value(launch)) for launch in self.launches]
        known = [one for one in values if np.isfinite(one[-1])]
        several = len({launch for launch, *_ in known}) > 1
        units = group_by_key((launch if several else seed, number) for launch, seed, number in known)
        return Side({unit: float(np.median(some)) for unit, some in units.items()})

    def course(self, column: str) -> list[tuple[float, ...]]:
        """Return ``column``, and median, least and largest accuracy of each evaluation that every launch has.

        Nothing if a launch has none; those of diverged parameters are left out.
        """
        seen = [launch.evaluations for launch in self.launches]
        count = min(map(len, seen), default=0)
        if not count:
            return []
        at = np.median([evaluations[column][:count] for evaluations in seen], axis=0)
        accuracies = np.array([evaluations["accuracy"][:count] for evaluations in seen])
        columns = (at, np.median(accuracies, axis=0), accuracies.min(axis=0), accuracies.max(axis=0))
        rows = zip(*(numbers.tolist() for numbers in columns), strict=True)
        return [row for row in rows if np.isfinite(row).all()]

    @cached_property
    def usable(self) -> list[list[Launch]]:
        """The launches of each seed that tell its time to the target; seeds without any are left out."""
        kept = ([launch for launch in launches if _is_usable(launch)] for launches in self.seeds)
        return [*filter(None, kept)]

    @cached_property
    def lost(self) -> Counter[str]:
        """Seeds that can't be used, by cause: disturbed, failed, not evaluated."""
        return Counter(
            "disturbed"
            if any(map(is_evaluated, launches))
            else "failed"
            if any(launch.record.error for launch in launches)
            else "not evaluated"
            for launches in self.seeds
            if not any(map(_is_usable, launches))
        )

    @cached_property
    def seconds(self) -> Vector:
        """Time to the target of each usable seed; infinite where it missed the target."""
        return self._medians(lambda launch: at_target(launch, "training_seconds"))

    def _medians(self, value: Callable[[Launch], float]) -> Vector:
        return np.array([np.median([*map(value, launches)]) for launches in self.usable])

    @property
    def reached(self) -> int:
        """Usable seeds that reached the target."""
        return len(self.seconds) - self.missed

    @property
    def missed(self) -> int:
        """Usable seeds that missed the target."""
        return int(np.isinf(self.seconds).sum())

    @property
    def diverged(self) -> bool:
        """True if all usable seeds diverged: neither more seeds nor longer training would reach the target."""
        return bool(self.usable) and all(launch.diverged for launches in self.usable for launch in launches)

    @property
    def state(self) -> str:
        """``too few seeds``, ``not reached`` by any, ``some missed``, or ``reached`` by all."""
        if len(self.seconds) < MIN_SEEDS:
            return "too few seeds"
        return {0: "reached", len(self.seconds): "not reached"}.get(self.missed, "some missed")

    @property
    def training(self) -> float:
        """Longest training of a usable launch, up to its last evaluation (s); 0 without one."""
        ends = (launch.evaluations["training_seconds"].max() for launches in self.usable for launch in launches)
        return float(max(ends, default=0.0))

    def mean(self, budget: float = np.inf) -> float:
        """Return the geometric mean of the seeds' times up to ``budget`` (s)."""
        return float(np.exp(np.log(np.minimum(self.seconds, budget)).mean())) if len(self.seconds) else np.inf

    def bounds(self, longest: float) -> Times:
        """Return the bounds of the seeds' times; a diverged one missed the target in the ``longest`` training."""
        since = self._medians(
            lambda launch: np.inf if launch.diverged else before_target(launch, "training_seconds")
        )
        with np.errstate(divide="ignore"):
            return Times(np.log(np.minimum(since, longest)), np.log(self.seconds))

    @property
    def epochs(self) -> float | None:
        """Epochs to the target, the median over usable launches; None if one missed it."""
        epochs = [at_target(launch, "epoch") for launches in self.usable for launch in launches]
        return float(np.median(epochs)) if np.isfinite(epochs).all() else None


def is_evaluated(launch: Launch) -> bool:
    """Return True if a launch evaluated on the test set."""
    return len(launch.evaluations) > 0


def _is_usable(launch: Launch) -> bool:
    return is_evaluated(launch) and not launch.disturbed


@dataclass(frozen=True)
class Field:
    """Candidates that may be compared: one dataset on one network, or a measured one, with the same stragglers."""

    conditions: tuple[str, ...]
    """In words, what not all fields of the run share."""
    candidates: Sequence[Candidate]

    @property
    def dataset(self) -> str:
        """The training data."""
        return str(self.candidates[0].record.dataset)

    @property
    def has_scales(self) -> bool:
        """True if candidates differ in their ranks."""
        return len({candidate.record.ranks for candidate in self.candidates}) > 1


def fields_of(launches: Iterable[Launch]) -> list[Field]:
    """Return the training cases by dataset and conditions; only within a field they are comparable.

    Cases without communication on more than one rank are left out.
    """
    groups: dict[Key, dict[Key, dict[object, list[Launch]]]] = {}
    for launch in launches:
        record = launch.record
        if record.kind == "train" and not (record.independent and record.ranks > 1):
            methods = groups.setdefault((record.dataset, record.network, record.conditions("trace")), {})
            seeds = methods.setdefault((record.problem(), record.method, record.ranks), {})
            seeds.setdefault(record.seed, []).append(launch)
    fields = [[Candidate([*seeds.values()]) for seeds in methods.values()] for methods in groups.values()]
    words = [candidates[0].record.words for candidates in fields]
    conditions = [[word for subject, word in subjects.items() if subject != "trace"] for subjects in words]
    shared = set.intersection(*map(set, conditions)) if conditions else set()
    return [
        Field(tuple(word for word in words if word not in shared), candidates)
        for words, candidates in zip(conditions, fields, strict=True)
    ]


class Ranked(NamedTuple):
    """A candidate by a criterion."""

    candidate: Candidate
    side: Side

    @property
    def center(self) -> float:
        """Median over launches, or the mean over the seeds that did not diverge."""
        values = [value for value in self.side.values.values() if math.isfinite(value)]
        return float((np.mean if self.side.unit == "seed" else np.median)(values)) if values else -math.inf


def ranking(field: Field, side: Callable[[Candidate], Side]) -> list[Ranked]:
    """Return the candidates with known values, the best first; a method of which a seed diverged comes last."""
    ranked = [Ranked(candidate, known) for candidate in field.candidates if (known := side(candidate)).values]
    return sorted(ranked, key=lambda one: (-math.inf in one.side.values.values(), -one.center))


def rivals(rankings: Sequence[Sequence[Ranked]]) -> list[list[Candidate]]:
    """Return for each ranking, all of one unit, the candidates that are not decidedly worse than the first."""
    quotient = any(one.side.unit == "launch" for some in rankings for one in some)
    verdicts = judge([[one.side for one in some] for some in rankings], quotient=quotient, chosen=True)
    return [
        [other.candidate for other, one in zip(some[1:], judged, strict=True) if one.word != "more"]
        for some, judged in zip(rankings, verdicts, strict=True)
    ]


@dataclass(frozen=True)
class Decision:
    """The candidates of a configuration, those first that reach the target soonest within its budget."""

    conditions: tuple[str, ...]
    """Of its field."""
    candidates: Sequence[Candidate]
    rivals: Sequence[Candidate]
    """Those that are not distinguished from the first, or by less than :data:`MIN_EFFECT`."""
    delay: Delay | None
    """Of the second after the first; None where they cannot be compared."""

    @property
    def first(self) -> Candidate:
        """The one that reaches the target soonest."""
        return self.candidates[0]

    @property
    def time(self) -> float | None:
        """Time of the first up to its budget (s); None if it is alone and missed a seed, or missed all."""
        timed = self.first.reached and (self.verdict != "alone" or self.is_won)
        return self.first.mean(self.budget) if timed else None

    @cached_property
    def budget(self) -> float:
        """Time up to which times count (s); infinite if no seed missed the target."""
        return _budget(self.candidates)

    @cached_property
    def lead(self) -> Interval:
        """Time of the second / time of the first; infinite bounds where a budget ended before."""
        if self.delay is None:
            return NOTHING
        return Interval(*map(bounded_exp, (self.delay.value, *self.delay.bounds())))

    @property
    def open(self) -> list[Candidate]:
        """Those with too few usable seeds."""
        return [candidate for candidate in self.candidates if candidate.state == "too few seeds"]

    @cached_property
    def verdict(self) -> str:
        """``not decided``, ``not reached``, ``undecided``, ``alone``, ``tied``, or ``decided``.

        Not decided: too few usable seeds. Not reached: by any method. Undecided: one that never reached it has too
        few seeds, or trained too briefly, to be ruled out. Alone: no other method reached the target with a seed.
        """
        if self.open:
            return "not decided"
        if self.first.state == "not reached":
            return "not reached"
        if self.unfinished:
            return "undecided"
        if self.rivals:
            return "tied"
        return "alone" if self.candidates[1].state == "not reached" else "decided"

    @property
    def unfinished(self) -> list[Candidate]:
        """Those that never reached the target, but are not distinguished from the first."""
        return [rival for rival in self.rivals if rival.state == "not reached"]

    @property
    def is_won(self) -> bool:
        """True if the first is distinguished from all others; if it is alone, with every seed."""
        return self.verdict == "decided" or (self.verdict == "alone" and not self.first.missed)

    @property
    def ratios(self) -> list[float]:
        """Time of each by the least one; infinite for a method that missed the target with a seed."""
        means = np.array([candidate.mean() for candidate in self.candidates])
        return list(means / means.min()) if np.isfinite(means).any() else [np.inf] * len(means)


def decisions(fields: Iterable[Field]) -> list[Decision]:
    """Decide each configuration with at least two methods and a target.

    The first is compared with each other method. p-values of all configurations are adjusted together (Benjamini &
    Hochberg).
    """
    configurations = [
        (field.conditions, _ordered(candidates)) for field in fields for candidates in _configurations(field)
    ]
    pairs = [
        (number, other, Delay(first.bounds(longest), other.bounds(longest)))
        for number, (_, (first, *others)) in enumerate(configurations)
        for longest in [max(candidate.training for candidate in (first, *others))]
        for other in others
        if first.state not in {"too few seeds", "not reached"} and other.state != "too few seeds"
        if not other.diverged
    ]
    delays = {number: delay for number, _, delay in reversed(pairs)}  # of the first rival
    p_values = adjusted(np.array([delay.p for _, _, delay in pairs]))
    rivals = group_by_key(
        (number, other)
        for (number, other, delay), p in zip(pairs, p_values, strict=True)
        if p >= ALPHA or delay.value < math.log(MIN_EFFECT)
    )
    return [
        Decision(*configuration, rivals.get(n, []), delays.get(n))
        for n, configuration in enumerate(configurations)
    ]


def _configurations(field: Field) -> list[list[Candidate]]:
    """Return the candidates of each configuration with several, one of which was evaluated for a target."""
    groups: dict[Key, list[Candidate]] = {}
    for candidate in field.candidates:
        record = candidate.record
        if record.target_accuracy is not None:
            groups.setdefault((record.model, record.ranks, record.target_accuracy), []).append(candidate)
    return [group for group in groups.values() if len(group) > 1 and any(len(each.seconds) for each in group)]


def _budget(candidates: Iterable[Candidate]) -> float:
    return min((method.training for method in candidates if method.state == "some missed"), default=np.inf)


def _ordered(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates by their time up to the budget; those that can't be compared last."""
    budget, last = _budget(candidates), ("not reached", "too few seeds")
    return sorted(candidates, key=lambda method: (method.state in last, method.mean(budget), method.mean()))


def area(ratios: Sequence[float]) -> float:
    """Return the area under a method's performance profile (Dolan & More 2002), from 0 to 1.

    The profile is the share of configurations in which the method's time is at most t times the best; the area is
    over the logarithm of t from 1 to :data:`WIDEST`. 1: the best everywhere.
    """
    lost = np.minimum(np.log(np.maximum(ratios, 1)) / np.log(WIDEST), 1)
    return float(1 - lost.mean())
