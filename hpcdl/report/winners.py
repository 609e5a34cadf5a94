"""The four questions that everybody asks, answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hpcdl.report.document import Section, Table
from hpcdl.report.quantities import NONE, digits, seconds
from hpcdl.report.seeds import scheme_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.analysis.best import Winner
    from hpcdl.report.settings import Settings

QUESTIONS: Final = {
    "throughput": "fastest: most images per second",
    "accuracy": "highest accuracy",
    "accuracy_in_time": "highest accuracy within a time",
    "accuracy_in_epochs": "highest accuracy within a number of epochs",
}
HEADER: Final = ("dataset", "question", "budget", "setting", "model", "training", "scheme", "ranks", "value")


def winners(found: Sequence[Winner], settings: Settings) -> Section:
    """Up to four winners per dataset. Where candidates are alike there is none to name."""
    rows = [
        (
            winner.dataset,
            QUESTIONS[winner.question],
            _budget(winner),
            *_who(winner, settings),
            f"{digits(winner.value)} images/s" if winner.question == "throughput" else digits(winner.value),
            str(winner.candidates),
        )
        for winner in found
    ]
    note = (
        "A budget is the largest that every candidate ran through. Medians over seeds, and over the schemes "
        "on one rank, which are one candidate. No interval is behind a place: see the tables above."
    )
    table = Table("", (*HEADER, "candidates"), rows, 7, [note])
    return Section("What is best", tables=[table.without_empty()] if rows else [])


def _budget(winner: Winner) -> str:
    if winner.budget is None:
        return NONE
    return seconds(winner.budget) if winner.question == "accuracy_in_time" else f"{digits(winner.budget)} epochs"


def _who(winner: Winner, settings: Settings) -> tuple[str, ...]:
    """Setting, model, training, scheme and ranks; how many are alike where several reached the same value."""
    fields = winner.fields
    if winner.alike > 1:
        how_many = "all" if winner.alike == winner.candidates else str(winner.alike)
        return ("", "", "", f"{how_many} alike", "")
    named = (str(fields.get(name) or "") for name in ("model", "training"))
    return (settings.letter(fields), *named, scheme_name(fields), str(fields.get("ranks")))
