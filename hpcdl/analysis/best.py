"""Who wins: the fastest, the most accurate, and the most accurate within a time or a number of epochs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcdl.analysis.fields import configuration
from hpcdl.analysis.launches import Launch, launches

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hpcdl.trace.run import Run


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


def winners(run: Run) -> list[Winner]:
    """Per dataset up to four winners among the training cases.

    A case without communication on more than one rank trains nothing whole and cannot win.
    Accuracy within a budget is the best seen until then.
    """
    groups: dict[str, dict[Any, list[Launch]]] = {}
    for launch in launches(run):
        fields = launch.fields
        alone = fields.get("aggregation") in {"none", None} and int(fields.get("ranks") or 1) > 1
        if fields.get("kind", "train") == "train" and not alone and not fields.get("error"):
            group = groups.setdefault(str(fields.get("dataset")), {})
            group.setdefault((configuration(fields), fields.get("ranks")), []).append(launch)
    found = []
    for dataset, group in groups.items():
        found += _throughput(dataset, list(group.values()))
        found += _accuracies(dataset, [seeds for seeds in group.values() if all(map(_evaluated, seeds))])
    return found


def _throughput(dataset: str, candidates: Sequence[Sequence[Launch]]) -> list[Winner]:
    rates = [
        (float(np.median(each)), seeds[0])
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
    final = [(float(np.median([_final(launch) for launch in seeds])), seeds[0]) for seeds in candidates]
    return [
        *_best(dataset, "accuracy", None, final),
        *_best(dataset, "accuracy_in_time", seconds, _within(candidates, "training_seconds", seconds)),
        *_best(dataset, "accuracy_in_epochs", epochs, _within(candidates, "epoch", epochs)),
    ]


def _final(launch: Launch) -> float:
    return float(launch.evaluations["accuracy"][np.argmax(launch.evaluations["step"])])


def _within(candidates: Iterable[Sequence[Launch]], column: str, budget: float) -> list[tuple[float, Launch]]:
    """Accuracies within the budget; a launch whose first evaluation came later counts 0."""
    return [
        (
            float(
                np.median(
                    [
                        launch.evaluations["accuracy"][launch.evaluations[column] <= budget].max(initial=0.0)
                        for launch in seeds
                    ]
                )
            ),
            seeds[0],
        )
        for seeds in candidates
    ]


def _best(
    dataset: str, question: str, budget: float | None, scored: Sequence[tuple[float, Launch]]
) -> list[Winner]:
    if not scored:
        return []
    value, launch = max(scored, key=lambda one: one[0])
    return [Winner(dataset, question, budget, launch.fields, value, len(scored))]
