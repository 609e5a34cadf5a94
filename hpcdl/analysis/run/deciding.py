"""Time to a target: which method reaches it first in each cell, whether that is decided, and performance profiles.

A cell is one network on one dataset under one set of conditions. A method that misses the target with any seed
within its training has not reached it. Seeds are the sample; times are compared by their logarithms, seed by seed:
methods with the same seed begin with the same parameters and see the same images.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hpcdl.analysis.run.outcome import at_target
from hpcdl.analysis.run.record_fields import ANY, conditions, is_independent, method, problem, words
from hpcdl.analysis.statistics.differences import ALPHA, Difference, adjusted, difference

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hpcdl.analysis.run.launches import Launch
    from hpcdl.analysis.statistics.estimates import Vector

MIN_EFFECT: Final = 1.05
"""Ratio of times below which two methods are tied."""
WIDEST: Final = 10.0
"""Ratio to the best time up to which performance profiles are looked at."""


@dataclass(frozen=True)
class Candidate:
    """One method at one scale, all seeds and launches. On one rank all aggregations are the same program."""

    fields: Mapping[str, Any]
    launches: Sequence[Launch]

    @property
    def is_evaluated(self) -> bool:
        """True if every launch evaluated on the test set."""
        return all(len(launch.evaluations.get("step", ())) for launch in self.launches)


@dataclass(frozen=True)
class Field:
    """Candidates that may be compared: one dataset on one network, or a measured one, with the same stragglers."""

    dataset: str
    conditions: tuple[str, ...]
    """In words, what not all fields of the run share."""
    candidates: Sequence[Candidate]


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
    every = [set(condition.values()) for condition in conditions_of.values()]
    shared = set.intersection(*every) if every else set()
    return [
        Field(
            field[0],
            tuple(word for word in conditions_of[field].values() if word not in shared),
            [Candidate(_pooled(together), together) for together in group.values()],
        )
        for field, group in groups.items()
    ]


def _pooled(together: Sequence[Launch]) -> Mapping[str, Any]:
    """Return the fields of the first, with any aggregation where the others have another."""
    fields = together[0].fields
    several = len({launch.fields.get("aggregation") for launch in together}) > 1
    return {**fields, "aggregation": ANY} if several else fields


@dataclass(frozen=True)
class Timed:
    """A method in a cell."""

    candidate: Candidate
    seeds: Sequence[Any]
    seconds: Vector
    """Time to the target of each seed; infinite where it was not reached."""

    @property
    def reached(self) -> bool:
        """True if every seed reached the target."""
        return bool(np.isfinite(self.seconds).all())

    @property
    def mean(self) -> float:
        """Geometric mean over seeds; infinite if one did not reach the target."""
        return float(np.exp(np.log(self.seconds).mean())) if self.reached else np.inf

    def median_of(self, column: str) -> float | None:
        """Return the median over launches of a column of the evaluations at the target."""
        found = [at_target(launch, column) for launch in self.candidate.launches]
        return float(np.median(found)) if np.isfinite(found).all() else None


@dataclass(frozen=True)
class Decision:
    """The methods of a cell, those first that reach the target soonest."""

    field: Field
    fields: Mapping[str, Any]
    """Fields of a record of the cell."""
    places: Sequence[Timed]
    rivals: Sequence[Timed]
    """Methods that are not told from the first, or by less than :data:`MIN_EFFECT`."""

    @property
    def verdict(self) -> str:
        """``decided``, ``tied``, ``not reached`` by any method, or ``one seed``."""
        if not self.places[0].reached:
            return "not reached"
        if len(self.places[0].seconds) < 2:
            return "one seed"
        return "tied" if self.rivals else "decided"

    @property
    def ratios(self) -> list[float]:
        """Time of each place by that of the first."""
        return [place.mean / self.places[0].mean if place.reached else np.inf for place in self.places]


def decisions(fields: Iterable[Field]) -> list[Decision]:
    """Decide each cell with at least two methods and a target.

    Between the first and each other method that reached the target: Student's test of the logarithm of the ratio
    of their times, by seed; Welch's test where the seeds differ. p-values of all cells are adjusted together
    (Benjamini & Hochberg).
    """
    cells = [cell for field in fields for cell in _cells(field)]
    tested = [
        (number, place)
        for number, (_, places) in enumerate(cells)
        for place in places[1:]
        if places[0].reached and place.reached and min(len(places[0].seconds), len(place.seconds)) > 1
    ]
    p = adjusted(np.array([_p(cells[number][1][0], place) for number, place in tested]))
    rivals: dict[int, list[Timed]] = {}
    for (number, place), value in zip(tested, p, strict=True):
        if value >= ALPHA or place.mean < MIN_EFFECT * cells[number][1][0].mean:
            rivals.setdefault(number, []).append(place)
    return [
        Decision(field, places[0].candidate.fields, places, rivals.get(number, []))
        for number, (field, places) in enumerate(cells)
    ]


def _p(first: Timed, other: Timed) -> float:
    own, theirs = np.log(first.seconds), np.log(other.seconds)
    if first.seeds == other.seeds:
        ratio = theirs - own
        error = ratio.std(ddof=1) / np.sqrt(len(ratio))
        return float(Difference(np.array([ratio.mean()]), np.array([error]), np.array([len(ratio) - 1.0])).p[0])
    return float(difference([own], [theirs]).p[0])


def _cells(field: Field) -> list[tuple[Field, list[Timed]]]:
    groups: dict[Any, list[Timed]] = {}
    for candidate in field.candidates:
        if candidate.is_evaluated and candidate.fields.get("target_accuracy") is not None:
            kept = [launch for launch in candidate.launches if not launch.disturbed]
            if kept:
                key = tuple(candidate.fields.get(name) for name in ("model", "ranks", "target_accuracy"))
                times: dict[Any, list[float]] = {}
                for launch in kept:
                    times.setdefault(launch.fields.get("seed"), []).append(at_target(launch, "training_seconds"))
                seconds = np.array([np.median(each) for each in times.values()])
                timed = Timed(Candidate(candidate.fields, kept), list(times), seconds)
                groups.setdefault(key, []).append(timed)
    ordered = (sorted(places, key=lambda place: place.mean) for places in groups.values())
    return [(field, places) for places in ordered if len(places) > 1]


def area(ratios: Sequence[float]) -> float:
    """Return the area under a method's performance profile (Dolan & More 2002), from 0 to 1.

    The profile is the share of cells in which the method's time is at most t times the best; the area is over the
    logarithm of t from 1 to :data:`WIDEST`. 1: the best everywhere.
    """
    lost = np.minimum(np.log(np.maximum(ratios, 1)) / np.log(WIDEST), 1)
    return float(1 - lost.mean())
