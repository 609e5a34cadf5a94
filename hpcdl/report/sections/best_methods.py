"""Best methods of each field by speed and by accuracy (:mod:`hpcdl.analysis.run.deciding`)."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from hpcdl.analysis.run.deciding import Candidate, Field, Ranked, is_evaluated, ranking, tied
from hpcdl.analysis.run.launches import Launch
from hpcdl.analysis.statistics.differences import difference
from hpcdl.report.formats.cells import NONE, digits, percent, plural, seconds
from hpcdl.report.formats.document import Section
from hpcdl.report.formats.tables import Column
from hpcdl.report.run.declaration import Answer, Declaration, one_table
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.literature import capital, in_words
from hpcdl.report.run.method_names import Names, several

AT_END: Final = "accuracy at the end"


class Best(NamedTuple):
    """The methods of a field by a criterion."""

    field: Field
    names: Names
    criterion: str
    budget: str
    ranked: Sequence[Ranked]
    shown: Callable[[float], str] = percent
    """Text of a value."""

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
        every = len(self.rivals) == len(self.ranked) - 1 > 1
        return "all others" if every else several([*map(self.name, self.rivals)])


def _speed(launch: Launch) -> float:
    return launch.images_per_second if len(launch.seconds) and not launch.disturbed else np.nan


def _accuracy(launch: Launch, *, by: str = "epoch", budget: float = np.inf, last: bool = False) -> float:
    """Return the best accuracy, or the last one, of the evaluations within a budget; NaN if training diverged."""
    if launch.diverged or not is_evaluated(launch):
        return np.nan
    seen = launch.evaluations["accuracy"][launch.evaluations[by] <= budget * (1 + 1e-9)]
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
    Column[Best]("criterion", lambda best: best.criterion),
    Column[Best]("budget", lambda best: best.budget),
    Column[Best]("method", lambda best: best.names(best.ranked[0].candidate.record), importance="answer"),
    Column[Best]("ranks", lambda best: str(best.ranked[0].candidate.record.ranks)),
    Column[Best]("value", lambda best: best.shown(best.ranked[0].center), importance="answer"),
    Column[Best]("tied with", lambda best: best.tied, importance="answer"),
    Column[Best]("of", lambda best: str(len(best.ranked))),
)


def _best(findings: Findings) -> list[Best]:
    """Return the best methods of each field with at least two, by each criterion.

    Budgets are the largest that every method ran through.
    """
    made = []
    for field in findings.fields:
        names = Names(candidate.record for candidate in field.candidates)
        launches = [each for candidate in field.candidates for each in candidate.launches if is_evaluated(each)]
        time, epochs = (
            min((float(launch.evaluations[column].max()) for launch in launches), default=0.0)
            for column in ("training_seconds", "epoch")
        )
        speed = ranking(field, _speed, lambda seeds: float(np.median([np.median(values) for values in seeds])))
        made.append(Best(field, names, "images per second", NONE, speed, lambda rate: f"{digits(rate)} images/s"))
        for criterion, budget, accuracy in (
            (AT_END, NONE, partial(_accuracy, last=True)),
            ("accuracy within a time", seconds(time), partial(_accuracy, by="training_seconds", budget=time)),
            ("accuracy within epochs", digits(epochs), partial(_accuracy, budget=epochs)),
        ):
            ranked = ranking(field, accuracy, lambda seeds: float(np.mean(np.concatenate(seeds))))
            made.append(Best(field, names, criterion, budget, ranked))
    return [best for best in made if len(best.ranked) > 1]


def page(findings: Findings) -> Section:
    """Return up to four rows for each dataset and conditions with at least two methods."""
    return one_table("Best methods", COLUMNS, _best(findings), NOTE, left=6)


def answer(findings: Findings) -> Answer | None:
    """Return, if the suite asks, which method is most often best; of one field how far best and last end apart."""
    best = _best(findings) if "best_methods" in findings.answered_by else []
    if not best:
        return None
    fields = len(best) // len({each.criterion for each in best})
    if fields == 1:
        return Answer(_ends(next(each for each in best if each.criterion == AT_END)))
    first, among = dict[str, Counter[str]](), Counter[str]()
    for each in best:
        names = [each.name(candidate, words=True) for candidate in (each.ranked[0].candidate, *each.rivals)]
        first.setdefault(each.criterion, Counter())[names[0]] += 1
        among.update(names)
    (method, number), *_ = among.most_common(1)
    comparisons = f"{len(best)} comparisons, by four criteria in {plural(fields, 'configuration')}"
    lines = []
    for name, won in first.items():
        shares = several([f"{winner} in {count}" for winner, count in won.most_common()])
        lines.append(f"Best by {name}: {shares} of {fields} configurations.")
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
