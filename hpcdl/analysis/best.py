"""Who wins: the fastest, the most accurate, and the most accurate within a time or a number of epochs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcdl.analysis.fields import ANY, SCHEME, problem, scheme
from hpcdl.analysis.launches import Launch, launches

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hpcdl.trace.run import Run


_Scored = tuple[float, "Sequence[Launch]"]
"""What a candidate reached, and its seeds and launches."""


@dataclass(frozen=True)
class Winner:
    """The answer to one question about one dataset."""

    dataset: str
    question: str
    """``throughput``, ``accuracy``, ``accuracy_in_time`` or ``accuracy_in_epochs``."""
    budget: float | None
    """Seconds or epochs: the largest amount that every candidate had, so that nobody is judged unfinished."""
    fields: Mapping[str, Any]
    value: float
    """Images per second, or accuracy; the median over seeds and launches."""
    candidates: int
    alike: int
    """How many candidates reached the same value, the winner included."""


def winners(run: Run) -> list[Winner]:
    """Per dataset up to four winners among the training cases.

    A case without communication on more than one rank trains nothing whole and cannot win. Cases on one rank
    that differ in their aggregation only are one candidate, or the luckiest of them would win. Accuracy
    within a budget is the best seen until then.
    """
    groups: dict[str, dict[Any, list[Launch]]] = {}
    for launch in launches(run):
        fields = launch.fields
        alone = fields.get("aggregation") in {"none", None} and int(fields.get("ranks") or 1) > 1
        if fields.get("kind", "train") == "train" and not alone and not fields.get("error"):
            group = groups.setdefault(str(fields.get("dataset")), {})
            key = (problem(fields), scheme(fields), fields.get("ranks"))
            group.setdefault(key, []).append(launch)
    found = []
    for dataset, group in groups.items():
        found += _throughput(dataset, list(group.values()))
        found += _accuracies(dataset, [seeds for seeds in group.values() if all(map(_evaluated, seeds))])
    return found


def _throughput(dataset: str, candidates: Sequence[Sequence[Launch]]) -> list[Winner]:
    rates = [
        (float(np.median(each)), seeds)
        for seeds in candidates
        if (each := [_rate(launch) for launch in seeds if len(launch.seconds)])
    ]
    return _best(dataset, "throughput", None, [rate for rate in rates if rate[0] > 0])


def _rate(launch: Launch) -> float:
    return float(np.median(launch.images) / np.median(launch.seconds))


def _evaluated(launch: Launch) -> bool:
    return len(launch.evaluations.get("step", ())) > 0


def _accuracies(dataset: str, candidates: Sequence[Sequence[Launch]]) -> list[Winner]:
    if not candidates:
        return []
    seconds, epochs = (
        min(float(launch.evaluations[column].max()) for seeds in candidates for launch in seeds)
        for column in ("training_seconds", "epoch")
    )
    final = [(float(np.median([_final(launch) for launch in seeds])), seeds) for seeds in candidates]
    return [
        *_best(dataset, "accuracy", None, final),
        *_best(dataset, "accuracy_in_time", seconds, _within(candidates, "training_seconds", seconds)),
        *_best(dataset, "accuracy_in_epochs", epochs, _within(candidates, "epoch", epochs)),
    ]


def _final(launch: Launch) -> float:
    return float(launch.evaluations["accuracy"][np.argmax(launch.evaluations["step"])])


def _within(candidates: Iterable[Sequence[Launch]], column: str, budget: float) -> list[_Scored]:
    """Accuracies within the budget; a launch whose first evaluation came later counts 0."""
    return [
        (float(np.median([_until(launch, column, budget) for launch in seeds])), seeds) for seeds in candidates
    ]


def _until(launch: Launch, column: str, budget: float) -> float:
    seen = launch.evaluations
    return float(seen["accuracy"][seen[column] <= budget].max(initial=0.0))


def _best(dataset: str, question: str, budget: float | None, scored: Sequence[_Scored]) -> list[Winner]:
    if not scored:
        return []
    value, seeds = max(scored, key=lambda one: one[0])
    aggregations = {launch.fields.get(SCHEME[0]) for launch in seeds}
    fields = {**seeds[0].fields, **({SCHEME[0]: ANY} if len(aggregations) > 1 else {})}
    alike = sum(other == value for other, _ in scored)
    return [Winner(dataset, question, budget, fields, value, len(scored), alike)]
