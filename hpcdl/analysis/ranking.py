"""Rankings: the fastest, the most accurate, and the most accurate within a time or a number of epochs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hpcdl.analysis.conditions import conditions, words
from hpcdl.analysis.record_fields import ANY, is_independent, method, problem
from hpcdl.analysis.statistics import Interval, mean_interval

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from hpcdl.analysis.launches import Launch

QUARTERS: Final = (0.25, 0.5, 0.75, 1.0)
"""Parts of a budget at which progress is looked at."""
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

    def mean(self, of: Callable[[Launch], float], *, most: float = np.inf, by_launch: bool = False) -> Interval:
        """The mean over seeds with Student's 95 % interval, within 0 and ``most``; no bounds for one seed.

        Launches of one seed count by their median; with ``by_launch`` each of them counts.
        """
        seeds: dict[Any, list[float]] = {}
        for launch in self.launches:
            key = (launch.fields.get("seed"), launch.fields.get("launch") if by_launch else None)
            seeds.setdefault(key, []).append(of(launch))
        value, low, high = mean_interval([float(np.median(each)) for each in seeds.values()])
        return Interval(value, float(np.clip(low, 0, most)), float(np.clip(high, 0, most)))


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
        seen = [launch.evaluations for one in self.candidates if one.is_evaluated for launch in one.launches]
        if not seen:
            return {}
        return {question: min(float(one[column].max()) for one in seen) for question, column in BUDGETS.items()}


@dataclass(frozen=True)
class Winner:
    """The answer to one question about one field."""

    field: Field
    question: str
    """``throughput``, ``accuracy``, ``accuracy_in_time`` or ``accuracy_in_epochs``."""
    budget: float | None
    """Seconds or epochs."""
    places: Sequence[tuple[Candidate, Interval]]
    """All candidates, the best first: mean images per second (seeds and launches) or accuracy (seeds)."""

    @property
    def fields(self) -> Mapping[str, Any]:
        """Fields of the winner."""
        return self.places[0][0].fields

    @property
    def value(self) -> Interval:
        """Value of the winner."""
        return self.places[0][1]

    @property
    def rivals(self) -> list[Candidate]:
        """Candidates tied with the winner: their intervals overlap. A value without bounds is its own interval."""
        least = np.fmin(self.value.low, self.value.value)
        return [one for one, reached in self.places[1:] if np.fmax(reached.high, reached.value) >= least]


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
    shared = set.intersection(*(set(one.values()) for one in conditions_of.values())) if conditions_of else set()
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
    found = []
    for field in fields:
        measured = [one for one in field.candidates if all(len(launch.seconds) for launch in one.launches)]
        found += _ranked(field, "throughput", None, measured, lambda launch: launch.images_per_second, np.inf)
        evaluated = [one for one in field.candidates if one.is_evaluated]
        found += _ranked(field, "accuracy", None, evaluated, final_accuracy, 1.0)
        for question, budget in field.budgets.items():
            found += _ranked(field, question, budget, evaluated, _within(BUDGETS[question], budget), 1.0)
    return found


def progress(field: Field, question: str) -> list[tuple[Candidate, list[float | None]]]:
    """Return each candidate's best accuracy after each quarter of a budget, the mean over seeds.

    None if a seed had no evaluation by then.
    """
    column, budget = BUDGETS[question], field.budgets[question]
    found = []
    for one in filter(lambda one: one.is_evaluated, field.candidates):
        limits = [_within(column, part * budget) for part in QUARTERS]
        seen = [all(limit(launch) for launch in one.launches) for limit in limits]
        found.append(
            (one, [one.mean(limit).value if yes else None for limit, yes in zip(limits, seen, strict=True)])
        )
    return found


def final_accuracy(launch: Launch) -> float:
    """Return the accuracy of the last evaluation."""
    return float(launch.evaluations["accuracy"][np.argmax(launch.evaluations["step"])])


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
    most: float,
) -> list[Winner]:
    # times differ between launches of one seed, accuracies hardly do
    scored = [(one, one.mean(of, most=most, by_launch=question == "throughput")) for one in candidates]
    places = sorted(scored, key=lambda one: -one[1].value)
    return [Winner(field, question, budget, places)] if places and places[0][1].value > 0 else []


def _pooled(together: Sequence[Launch]) -> Mapping[str, Any]:
    """The fields of the first, with any aggregation where the others have another."""
    fields = together[0].fields
    several = len({launch.fields.get("aggregation") for launch in together}) > 1
    return {**fields, "aggregation": ANY} if several else fields
