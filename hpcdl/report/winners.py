"""The four questions that everybody asks, answered; and how the candidates got there."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from hpcdl.analysis.best import BUDGETS, QUARTERS, progress
from hpcdl.analysis.fields import strategy
from hpcdl.report.document import Section, Table
from hpcdl.report.names import Names
from hpcdl.report.quantities import NONE, digits, interval, plural, seconds

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from hpcdl.analysis.best import Candidate, Field, Winner
    from hpcdl.report.settings import Settings

QUESTIONS: Final = {
    "throughput": "fastest: most images per second",
    "accuracy": "highest accuracy",
    "accuracy_in_time": "highest accuracy within a time",
    "accuracy_in_epochs": "highest accuracy within a number of epochs",
}
HEADER: Final = (
    *("dataset", "conditions", "question", "budget", "setting", "model", "method", "ranks", "value"),
    *("95 % over seeds", "not distinguishable from", "candidates", "doubt"),
)
MOST: Final = 3
"""Rivals that are named; more are counted."""
ONE_SEED: Final = "one seed, no interval"
CROWDED: Final = "OVERSUBSCRIBED"
"""Said beside what was measured where ranks share cores."""


def winners(found: Sequence[Winner], settings: Settings, crowded: Collection[int]) -> Section:
    """Up to four winners for each dataset and conditions, and whom each cannot be told from.

    ``crowded``: numbers of ranks that share cores where they were measured.
    """
    rows = [
        (
            winner.field.dataset,
            _conditions(winner.field) or NONE,
            QUESTIONS[winner.question],
            _budget(winner.field, winner.question) if winner.budget else NONE,
            *_who(winner, settings),
            _shown(winner),
            _bounds(winner),
            _rivals(winner),
            str(len(winner.places)),
            CROWDED if _crowded(winner, crowded) else NONE,
        )
        for winner in found
    ]
    note = (
        "A budget is the largest that every candidate ran through. Means over seeds with Student's 95 % interval. "
        "Not distinguishable: the intervals overlap, or there is none: with one seed a place may be luck, and no "
        "difference is shown. Images per second: all that were measured by the time they took, pauses included."
    )
    table = Table("", HEADER, rows, 8, [note])
    return Section("What is best", tables=[table.without_empty()] if rows else [])


def answer(winner: Winner, settings: Settings, crowded: Collection[int]) -> str:
    """One line about a winner, where several strategies are compared; empty elsewhere. ``crowded``: as above."""
    if len({strategy(one.fields) for one in winner.field.candidates}) < 2:
        return ""
    setting, _, who, ranks = _who(winner, settings)
    budget = f" ({_budget(winner.field, winner.question)})" if winner.budget else ""
    words = [
        *([f"setting {setting}"] if setting != NONE else []),
        *([plural(int(ranks), "rank")] if ranks != NONE else []),
        f"{_shown(winner)}, {_bounds(winner)}",
    ]
    rivals = f"; not distinguishable from {_rivals(winner)}" if _rivals(winner) != NONE else ""
    where = "".join(f"{part}: " for part in [_conditions(winner.field)] if part)
    shared = _crowded(winner, crowded)
    doubt = f"; {CROWDED}, {plural(shared, 'rank')} share cores: doubtful" if shared else ""
    return f"{where}{QUESTIONS[winner.question]}{budget}: {who} ({', '.join(words)}){rivals}{doubt}."


def _crowded(winner: Winner, crowded: Collection[int]) -> int:
    """The most ranks of a candidate that shared cores; 0 where none did, or all is simulated."""
    if _is_virtual(winner.field):
        return 0
    return max((one.fields["ranks"] for one, _ in winner.places if one.fields["ranks"] in crowded), default=0)


def over_time(fields: Sequence[Field], settings: Settings) -> Section:
    """How accurate every candidate was after each quarter of the common budgets."""
    tables = [
        _over_budget(field, question, settings)
        for field in fields
        for question in field.budgets
        if sum(one.is_evaluated for one in field.candidates) > 1
    ]
    note = "Best accuracy yet, the mean over seeds; a dash where the test set had not been looked at by then."
    return Section("Accuracy over time", [note] if tables else [], tables=tables)


def _over_budget(field: Field, question: str, settings: Settings) -> Table:
    names = _names(field)
    budget = field.budgets[question]
    shown = seconds if question == "accuracy_in_time" else digits
    header = ("setting", "method", "ranks", *(f"{part:.0%} = {shown(part * budget)}" for part in QUARTERS))
    rows = [
        (settings.letter(one.fields) or NONE, names(fields), str(fields.get("ranks")), *map(digits, reached))
        for one, reached in progress(field, question)
        for fields in [one.fields]
    ]
    where = ", ".join(filter(None, (field.dataset, _conditions(field))))
    return Table(f"{where}: {_budget(field, question)}", header, rows, 2).without_empty()


def _names(field: Field) -> Names:
    return Names(one.fields for one in field.candidates)


def _conditions(field: Field) -> str:
    return ", ".join(field.told)


def _budget(field: Field, question: str) -> str:
    budget = field.budgets[question]
    if question not in BUDGETS or question == "accuracy_in_epochs":
        return f"{digits(budget)} epochs"
    return f"{seconds(budget)} of {'virtual' if _is_virtual(field) else 'training'} time"


def _is_virtual(field: Field) -> bool:
    return any(one.fields.get("network") for one in field.candidates)


def _who(winner: Winner, settings: Settings) -> tuple[str, ...]:
    """Setting, model, method and ranks; with one seed, how many are alike where several reached the same value."""
    alike = len(winner.rivals) + 1
    if alike > 1 and not _has_interval(winner):
        how_many = "all" if alike == len(winner.places) else str(alike)
        return (NONE, NONE, f"{how_many} alike", NONE)
    fields = winner.fields
    named = (str(fields.get("model") or NONE), _names(winner.field)(fields), str(fields.get("ranks")))
    return (settings.letter(fields) or NONE, *named)


def _has_interval(winner: Winner) -> bool:
    return math.isfinite(winner.value.low)


def _bounds(winner: Winner) -> str:
    if not _has_interval(winner):
        return ONE_SEED
    return interval(winner.value.low, winner.value.high)


def _rivals(winner: Winner) -> str:
    rivals = winner.rivals
    if len(winner.places) > 1 and not _has_interval(winner):
        return "any other: one seed"
    if len(rivals) > MOST and len(rivals) + 1 == len(winner.places):
        return "any other"
    names = [_called(winner.field, one) for one in rivals[:MOST]]
    more = [f"{len(rivals) - MOST} more"] if len(rivals) > MOST else []
    single = sum(not math.isfinite(reached.low) and one not in rivals for one, reached in winner.places)
    return "; ".join([*names, *more, *([f"{single} of one seed"] if single else [])]) or NONE


def _called(field: Field, one: Candidate) -> str:
    several = len({other.fields.get("ranks") for other in field.candidates}) > 1
    return _names(field)(one.fields) + (f" on {plural(one.fields.get('ranks'), 'rank')}" if several else "")


def _shown(winner: Winner) -> str:
    value = digits(winner.value.value)
    return f"{value} images/s" if winner.question == "throughput" else value
