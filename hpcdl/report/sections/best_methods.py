"""Best methods of each field by speed and by accuracy (:mod:`hpcdl.analysis.run.deciding`)."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from hpcdl.analysis.run.deciding import Candidate, Field, Ranked, is_evaluated, ranking, tied
from hpcdl.analysis.run.launches import Launch
from hpcdl.analysis.statistics.differences import difference
from hpcdl.analysis.statistics.estimates import Vector
from hpcdl.report.formats.cells import NONE, digits, percent, plural, seconds
from hpcdl.report.formats.document import Section
from hpcdl.report.formats.tables import Column, table
from hpcdl.report.run.declaration import Answer, Declaration
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.literature import capital, in_words
from hpcdl.report.run.method_names import Names, several

AT_END: Final = "accuracy at the end"


class Criterion(NamedTuple):
    """Criterion by which the methods of a field are compared."""

    name: str
    value: Callable[[Launch], float]
    """Of a launch; not a number if unknown."""
    budget: str = NONE
    shown: Callable[[float], str] = percent
    center: Callable[[Sequence[Vector]], float] = lambda seeds: float(np.mean(np.concatenate(seeds)))


class Best(NamedTuple):
    """The methods of a field by a criterion."""

    field: Field
    criterion: Criterion
    ranked: Sequence[Ranked]
    names: Names

    def name(self, candidate: Candidate, *, words: bool = False) -> str:
        """Return the name of a method, in words for a sentence, with its ranks if others have more."""
        record, most = candidate.record, max(other.record.ranks for other in self.field.candidates)
        name = in_words(self.names(record), record) if words else self.names(record)
        return name + (f" on {plural(record.ranks, 'rank')}" if record.ranks < most else "")

    @property
    def rivals(self) -> list[Candidate]:
        """Methods that are not distinguished from the best."""
        return tied(self.ranked)

    @property
    def tied(self) -> str:
        """The rivals by name."""
        if len(self.ranked[0].values) == 1:
            return "unknown: one value each"
        return (
            "all others"
            if len(self.rivals) == len(self.ranked) - 1 > 1
            else several([*map(self.name, self.rivals)])
        )


def _criteria(field: Field) -> list[Criterion]:
    """Return the questions; their budgets are those that every method ran through."""
    seen = [launch.evaluations for candidate in field.candidates for launch in candidate.launches]
    time, epochs = (
        min((float(evaluations[column].max()) for evaluations in seen if len(evaluations)), default=0.0)
        for column in ("training_seconds", "epoch")
    )
    return [
        Criterion("images per second", _speed, shown=lambda value: f"{digits(value)} images/s", center=_middle),
        Criterion(AT_END, lambda launch: _accuracy(launch, "epoch", np.inf, last=True)),
        Criterion(
            "accuracy within a time",
            lambda launch: _accuracy(launch, "training_seconds", time),
            seconds(time),
        ),
        Criterion("accuracy within epochs", lambda launch: _accuracy(launch, "epoch", epochs), digits(epochs)),
    ]


def _middle(seeds: Sequence[Vector]) -> float:
    return float(np.median([np.median(values) for values in seeds]))


def _speed(launch: Launch) -> float:
    return launch.images_per_second if len(launch.seconds) and not launch.disturbed else np.nan


def _accuracy(launch: Launch, column: str, budget: float, *, last: bool = False) -> float:
    """Return the best accuracy, or the last one, of the evaluations within a budget; NaN if training diverged."""
    if launch.diverged or not is_evaluated(launch):
        return np.nan
    seen = launch.evaluations["accuracy"][launch.evaluations[column] <= budget * (1 + 1e-9)]
    return float(seen[-1] if last else seen.max()) if len(seen) else np.nan


NOTE: Final = (
    "Budget: the longest time, or most epochs, that every method trained. Accuracies are means over seeds and "
    "launches. Images per second: all measured images / the time that they took, the median over undisturbed "
    "launches, then over seeds. Tied: by Welch's test, adjusted for the number of methods, the method may be as "
    "good as the best one; one seed or launch decides nothing. The accuracy at the end is from the last "
    "evaluation; the accuracy within a budget is the best one until then."
)
COLUMNS: Final = (
    Column[Best]("dataset", lambda best: best.field.dataset.partition("(")[0]),
    Column[Best]("conditions", lambda best: ", ".join(best.field.conditions) or NONE),
    Column[Best]("criterion", lambda best: best.criterion.name),
    Column[Best]("budget", lambda best: best.criterion.budget),
    Column[Best]("method", lambda best: best.names(best.ranked[0].candidate.record), importance="answer"),
    Column[Best]("ranks", lambda best: str(best.ranked[0].candidate.record.ranks)),
    Column[Best]("value", lambda best: best.criterion.shown(best.ranked[0].center), importance="answer"),
    Column[Best]("tied with", lambda best: best.tied, importance="answer"),
    Column[Best]("of", lambda best: str(len(best.ranked))),
)


def _best(findings: Findings) -> list[Best]:
    """Return the best methods of each field with at least two, by each criterion."""
    return [
        Best(field, criterion, ranked, Names(candidate.record for candidate in field.candidates))
        for field in findings.fields
        for criterion in _criteria(field)
        if len(ranked := ranking(field, criterion.value, criterion.center)) > 1
    ]


def page(findings: Findings) -> Section:
    """Return up to four rows for each dataset and conditions with at least two methods."""
    best = _best(findings)
    return Section("Best methods", tables=[table(COLUMNS, best, notes=[NOTE], left=6)] if best else [])


def answer(findings: Findings) -> Answer | None:
    """Return which method is most often the best; of one field how far the best and the last end apart.

    None unless the suite asks: other sections say more on a run with a target.
    """
    best = _best(findings) if "best_methods" in findings.answered_by else []
    if not best:
        return None
    fields = len(best) // len({each.criterion.name for each in best})
    if fields == 1:
        return Answer(_ends(next(each for each in best if each.criterion.name == AT_END)))
    first, among = dict[str, Counter[str]](), Counter[str]()
    for each in best:
        winner = each.ranked[0].candidate
        first.setdefault(each.criterion.name, Counter())[each.name(winner, words=True)] += 1
        among.update(each.name(candidate, words=True) for candidate in (winner, *each.rivals))
    (method, number), *_ = among.most_common(1)
    comparisons = f"{len(best)} comparisons, by four criteria in {plural(fields, 'configuration')}"
    counts = {
        name: [f"{method} in {number}" for method, number in won.most_common()] for name, won in first.items()
    }
    lines = [f"Best by {name}: {several(shares)} of {fields} configurations." for name, shares in counts.items()]
    return Answer(f"{capital(method)} is the best method, alone or tied, in {number} of {comparisons}.", lines)


def _ends(best: Best) -> str:
    """Return how many percentage points the last method of a field ends below the best."""
    first, last = best.ranked[0], best.ranked[-1]
    below = difference([last.values], [first.values])
    mean, low, high = (f"{100 * bound[0]:.1f}" for bound in (below.value, *below.bounds()))
    methods = (best.name(ranked.candidate, words=True) for ranked in (last, first))
    doubt = "Not decided whether methods differ: " if last.candidate in best.rivals else ""
    lower = f" reaches a final accuracy {mean} percentage points ({low} to {high}) lower than "
    return capital(doubt + lower.join(methods) + ".")


SECTION: Final = Declaration(30, page, answer=answer)
