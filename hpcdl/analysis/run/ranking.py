"""Rankings: the fastest, the most accurate, and the most accurate within a time or a number of epochs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from hpcdl.analysis.run.disturbance import correction
from hpcdl.analysis.run.outcome import at_end
from hpcdl.analysis.run.record_fields import ANY, conditions, is_independent, keeps_step, method, problem, words
from hpcdl.analysis.statistics.differences import ALPHA, adjusted, difference
from hpcdl.analysis.statistics.estimates import Interval, mean_interval

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from hpcdl.analysis.run.launches import Launch
    from hpcdl.analysis.statistics.estimates import Vector


TIMED: Final = ("throughput", "accuracy_in_time")
"""Questions that a disturbance from outside the job would answer wrongly, whatever the strategy."""
BUDGETS: Final = {"accuracy_in_time": "training_seconds", "accuracy_in_epochs": "epoch"}
"""Question to the column of the evaluations that is limited."""


@dataclass(frozen=True)
class Candidate:
    """One method at one scale, all seeds and launches. On one rank all aggregations are the same program."""

    fields: Mapping[str, Any]
    launches: Sequence[Launch]

    @property
    def is_evaluated(self) -> bool:
        """True if every launch evaluated on the test set."""
        return all(len(launch.evaluations.get("step", ())) for launch in self.launches)

    def undisturbed(self, *, timed: bool) -> list[Launch]:
        """Return the launches that may be ranked: undisturbed ones.

        A strategy in lock-step learns the same however long its steps take: if the question is not ``timed``, its
        disturbed launches count.
        """
        return [
            launch for launch in self.launches if not launch.disturbed or (keeps_step(launch.fields) and not timed)
        ]

    def values(self, of: Callable[[Launch], float], unit: str) -> Vector:
        """Return one number per ``unit``, "seed" or "launch": the median over the others of the two."""
        values: dict[Any, list[float]] = {}
        for launch in self.launches:
            values.setdefault(launch.fields.get(unit), []).append(of(launch))
        return np.array([np.median(each) for each in values.values()])


@dataclass(frozen=True)
class Field:
    """Candidates that may be compared: one dataset on one network, or a measured one, with the same stragglers."""

    dataset: str
    conditions: tuple[str, ...]
    """In words, what not all fields of the run share."""
    candidates: Sequence[Candidate]

    @property
    def budgets(self) -> dict[str, float]:
        """Seconds and epochs that all candidates completed, by question."""
        seen = [
            launch.evaluations
            for candidate in self.candidates
            if candidate.is_evaluated
            for launch in candidate.launches
        ]
        if not seen:
            return {}
        return {
            question: min(float(place[column].max()) for place in seen) for question, column in BUDGETS.items()
        }


class Place(NamedTuple):
    """A candidate's result."""

    candidate: Candidate
    values: Vector
    """Images per second, one per launch; or accuracies, one per seed."""
    interval: Interval
    """Mean with Student's 95 % interval; of images per second the geometric mean. No bounds for one value."""
    stolen: float
    """Mean share of time that the hypervisor took; 0 if the values are no speeds."""


@dataclass(frozen=True)
class Winner:
    """The answer to one question about one field."""

    field: Field
    question: str
    """``throughput``, ``accuracy``, ``accuracy_in_time`` or ``accuracy_in_epochs``."""
    budget: float | None
    """Seconds or epochs."""
    places: Sequence[Place]
    """All candidates with a verdict, the best first."""
    disturbed: int = 0
    """Candidates that are left out because all of their launches were disturbed."""

    @property
    def fields(self) -> Mapping[str, Any]:
        """Fields of the winner."""
        return self.places[0].candidate.fields

    @property
    def value(self) -> Interval:
        """Value of the winner."""
        return self.places[0].interval

    @cached_property
    def rivals(self) -> list[Candidate]:
        """Candidates tied with the winner: tested and not told apart; if it has one value, its equals.

        Welch's test, of logarithms of images per second, adjusted for the number of candidates. If the hypervisor
        took more time from a candidate than from the winner, its corrected speed is tested.
        """
        first, *others = self.places
        if len(first.values) < 2:
            return [other.candidate for other in others if other.interval.value == first.interval.value]
        tested = [other for other in others if len(other.values) > 1]
        if not tested:
            return []
        scale = np.log if self.question == "throughput" else np.asarray
        given = [max(1.0, correction(first.stolen, place.stolen)) for place in tested]
        own = [scale(place.values * factor) for place, factor in zip(tested, given, strict=True)]
        test = difference(own, [scale(first.values)] * len(tested))
        behind = (adjusted(test.p) < ALPHA) & (test.value > 0)
        return [rival.candidate for rival, is_behind in zip(tested, behind, strict=True) if not is_behind]

    @property
    def inconclusive(self) -> int:
        """Number of other candidates that one value leaves open, their own or the winner's."""
        first, *others = self.places
        return len(others) if len(first.values) < 2 else sum(len(other.values) < 2 for other in others)


def fields_of(launches: Iterable[Launch]) -> list[Field]:
    """Return the training cases by dataset and conditions; only within a field they are comparable.

    Cases without communication on more than one rank, and failed cases, are left out.
    """
    groups: dict[Any, dict[Any, list[Launch]]] = {}
    conditions_of: dict[Any, dict[str, str]] = {}
    for launch in launches:
        fields = launch.fields
        alone = is_independent(fields) and int(fields.get("ranks") or 1) > 1
        if fields.get("kind", "train") == "train" and not alone and not fields.get("error"):
            field = (str(fields.get("dataset")), fields.get("network"), conditions(fields, "trace"))
            conditions_of.setdefault(field, {key: word for key, word in words(fields).items() if key != "trace"})
            group = groups.setdefault(field, {})
            group.setdefault((problem(fields), method(fields), fields.get("ranks")), []).append(launch)
    shared = (
        set.intersection(*(set(condition.values()) for condition in conditions_of.values()))
        if conditions_of
        else set()
    )
    return [
        Field(
            field[0],
            tuple(word for word in conditions_of[field].values() if word not in shared),
            [Candidate(_pooled(together), together) for together in group.values()],
        )
        for field, group in groups.items()
    ]


def winners(fields: Iterable[Field]) -> list[Winner]:
    """Up to four winners in each field.

    Throughput is all measured images by the time they took, so that a pause now and then counts whatever the
    strategy. Accuracy within a budget is the best until then, 0 if the first evaluation is later.
    """
    winners = []
    for field in fields:
        measured = [
            candidate
            for candidate in field.candidates
            if all(len(launch.seconds) for launch in candidate.launches)
        ]
        winners += _ranked(field, "throughput", None, measured, lambda launch: launch.images_per_second)
        evaluated = [candidate for candidate in field.candidates if candidate.is_evaluated]
        winners += _ranked(field, "accuracy", None, evaluated, final_accuracy)
        for question, budget in field.budgets.items():
            winners += _ranked(field, question, budget, evaluated, _within(BUDGETS[question], budget))
    return winners


def final_accuracy(launch: Launch) -> float:
    """Return the accuracy on the test set at the end."""
    return at_end(launch, "accuracy")


def _within(column: str, budget: float) -> Callable[[Launch], float]:
    def best(launch: Launch) -> float:
        seen = launch.evaluations
        return float(seen["accuracy"][seen[column] <= budget].max(initial=0.0))

    return best


def _ranked(
    field: Field,
    question: str,
    budget: float | None,
    candidates: Iterable[Candidate],
    of: Callable[[Launch], float],
) -> list[Winner]:
    timed = question in TIMED
    kept = [(candidate, candidate.undisturbed(timed=timed)) for candidate in candidates]
    speed = question == "throughput"
    simulated = any(candidate.fields.get("network") for candidate in field.candidates)
    unit = "launch" if speed and not simulated else "seed"  # others hardly differ between launches of a seed
    places = [
        Place(winner, values, _interval(values, positive=speed), _stolen(rest) if speed else 0.0)
        for winner, rest in kept
        if rest
        for values in [replace(winner, launches=rest).values(of, unit)]
    ]
    places.sort(key=lambda winner: -winner.interval.value)
    disturbed = sum(not rest for _, rest in kept)
    if not places or not places[0].interval.value > 0:
        return []
    return [Winner(field, question, budget, places, disturbed)]


def _stolen(launches: Sequence[Launch]) -> float:
    return float(np.mean([launch.stolen for launch in launches]))


def _interval(values: Vector, *, positive: bool) -> Interval:
    """Return the mean and Student's 95 % interval, of images per second by their logarithms."""
    if positive and values.min() > 0:
        value, low, high = np.exp(mean_interval(np.log(values)))
        return Interval(float(value), float(low), float(high))
    value, low, high = mean_interval(values)
    return Interval(value, float(np.clip(low, 0, 1)), float(np.clip(high, 0, 1)))


def _pooled(together: Sequence[Launch]) -> Mapping[str, Any]:
    """The fields of the first, with any aggregation where the others have another."""
    fields = together[0].fields
    several = len({launch.fields.get("aggregation") for launch in together}) > 1
    return {**fields, "aggregation": ANY} if several else fields
