"""Best methods by four criteria: speed, accuracy, accuracy within a time, accuracy within a number of epochs."""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from hpcdl.analysis.run.deciding import Candidate, Field, is_evaluated
from hpcdl.analysis.run.launches import Launch
from hpcdl.analysis.statistics.differences import ALPHA, adjusted, difference
from hpcdl.analysis.statistics.estimates import Vector
from hpcdl.report.formats.cells import NONE, digits, plural, seconds
from hpcdl.report.formats.document import Section, Table
from hpcdl.report.run.contents import Declaration
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.method_names import Names
from hpcdl.report.sections.deciding import several

HEADER: Final = ("dataset", "conditions", "question", "budget", "method", "ranks", "value", "tied with", "of")
NOTE: Final = (
    "A budget is the largest that every method ran through. Accuracies are means over seeds and launches. "
    "Images/s: all measured images by the time that they took, the median over undisturbed launches, then over "
    "seeds. Tied: Welch's test, adjusted for the number of methods, does not distinguish it from the best; one "
    "seed or launch cannot. At the end: the last evaluation; within a budget: the best until then."
)


def page(findings: Findings) -> Section:
    """Return up to four rows for each dataset and conditions with at least two methods."""
    rows = []
    for field in findings.fields:
        name = Names(candidate.record for candidate in field.candidates)
        several = len({candidate.record.ranks for candidate in field.candidates}) > 1

        def called(candidate: Candidate, name: Names = name, several: bool = several) -> str:
            on = f" on {plural(candidate.record.ranks, 'rank')}" if several else ""
            return f"{name(candidate.record)}{on}"

        for question, budget, unit, value in _questions(field):
            ranked = _ranked(field, value)
            if len(ranked) < 2:
                continue
            best, values, center = ranked[0]
            rows.append(
                (
                    field.dataset,
                    ", ".join(field.conditions) or NONE,
                    question,
                    budget,
                    name(best.record),
                    str(best.record.ranks),
                    f"{digits(center)}{unit}",
                    _rivals([called(candidate) for candidate in _tied(ranked)], len(values), len(ranked) - 1),
                    str(len(ranked)),
                )
            )
    return Section("Best methods", tables=[Table("", HEADER, rows, 6, [NOTE]).without_empty()] if rows else [])


def _questions(field: Field) -> list[tuple[str, str, str, Callable[[Launch], float]]]:
    """Return the question, its budget in words, the unit, and the value of a launch, not a number if unknown."""
    evaluated = [launch for candidate in field.candidates for launch in candidate.launches if is_evaluated(launch)]
    asked: list[tuple[str, str, str, Callable[[Launch], float]]] = [
        ("fastest: most images per second", NONE, " images/s", _speed),
        ("highest accuracy at the end", NONE, "", lambda launch: _accuracy(launch, "epoch", np.inf, last=True)),
    ]
    if evaluated:
        time, epochs = (
            min(float(launch.evaluations[column].max()) for launch in evaluated)
            for column in ("training_seconds", "epoch")
        )
        asked += [
            (
                "best accuracy within a time",
                seconds(time),
                "",
                lambda launch: _accuracy(launch, "training_seconds", time),
            ),
            (
                "best accuracy within a number of epochs",
                digits(epochs),
                "",
                lambda launch: _accuracy(launch, "epoch", epochs),
            ),
        ]
    return asked


def _speed(launch: Launch) -> float:
    return launch.images_per_second if len(launch.seconds) and not launch.disturbed else np.nan


def _accuracy(launch: Launch, column: str, budget: float, *, last: bool = False) -> float:
    """Return the best accuracy, or the last one, of the evaluations within a budget."""
    if not is_evaluated(launch) or launch.diverged:
        return np.nan
    seen = launch.evaluations["accuracy"][launch.evaluations[column] <= budget * (1 + 1e-9)]
    return float(seen[-1] if last else seen.max()) if len(seen) else np.nan


def _ranked(field: Field, value: Callable[[Launch], float]) -> list[tuple[Candidate, Vector, float]]:
    """Return the methods with known values, and their center; the highest center first."""
    known = []
    for candidate in field.candidates:
        by_seed: dict[object, list[float]] = {}
        for launch in candidate.launches:
            if np.isfinite(one := value(launch)):
                by_seed.setdefault(launch.record.seed, []).append(one)
        values = np.array([one for each in by_seed.values() for one in each])
        if len(values):
            medians = [np.median(each) for each in by_seed.values()]
            center = np.median(medians) if value is _speed else np.mean(values)
            known.append((candidate, values, float(center)))
    return sorted(known, key=lambda row: -row[2])


def _tied(ranked: Sequence[tuple[Candidate, Vector, float]]) -> list[Candidate]:
    """Return the methods that are not distinguished from the best; one with a single value never is."""
    (_, best, _), *others = ranked
    if len(best) < 2:
        return [candidate for candidate, _, _ in others]
    p = adjusted(np.array([_p(best, values) for _, values, _ in others]))
    return [candidate for (candidate, *_), chance in zip(others, p, strict=True) if chance >= ALPHA]


def _rivals(names: Sequence[str], values: int, others: int) -> str:
    """Return in words the methods tied with the best, which has a number of ``values``, of ``others``."""
    if values == 1:
        return "unknown: one value each"
    if len(names) == others > 1:
        return "any other"
    return several(names)


def _p(best: Vector, values: Vector) -> float:
    return float(difference([best], [values]).p[0]) if len(values) > 1 else 1.0


SECTION = Declaration(30, page)
