"""Best methods by speed and by accuracy, and those tied with them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from hpcdl.analysis.run.record_fields import strategy
from hpcdl.report.formats.cells import NONE, digits, interval, plural
from hpcdl.report.formats.document import Section, Table
from hpcdl.report.run.contents import Answer, Declaration
from hpcdl.report.sections.accuracy import budget_of, conditions, is_virtual, names_in

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from hpcdl.analysis.run.ranking import Candidate, Field, Winner
    from hpcdl.report.run.findings import Findings
    from hpcdl.report.run.grouping import Settings

QUESTIONS: Final = {
    "throughput": "fastest: most images per second",
    "accuracy": "highest accuracy at the end",
    "accuracy_in_time": "best accuracy within a time",
    "accuracy_in_epochs": "best accuracy within a number of epochs",
}
HEADER: Final = (
    *("dataset", "conditions", "question", "budget", "setting", "model", "method", "ranks", "value"),
    *("95 %", "tied with", "candidates", "doubt"),
)
MAX_RIVALS: Final = 3
"""Rivals that are named; more are counted."""
OVERSUBSCRIBED: Final = "OVERSUBSCRIBED"
"""Doubt about times of ranks that share cores."""


def page(findings: Findings) -> Section:
    """Return up to four winners for each dataset and conditions, with the candidates tied with each."""
    rows = [
        (
            winner.field.dataset,
            conditions(winner.field) or NONE,
            QUESTIONS[winner.question],
            budget_of(winner.field, winner.question) if winner.budget else NONE,
            *_labels(winner, findings.settings),
            _shown(winner),
            _bounds(winner),
            _rivals(winner),
            str(len(winner.places)),
            _doubt(winner, findings),
        )
        for winner in findings.winners
    ]
    note = (
        "A budget is the largest that every candidate ran through. Accuracies are means over seeds, images per "
        "second geometric means over launches, with Student's 95 % interval. Tied: Welch's test, adjusted for the "
        "number of candidates, does not tell it from the best. One seed or one launch is inconclusive: a place "
        "may be luck. Disturbed launches are left out; training in lock-step keeps its accuracy. At the end: the "
        "last evaluation on the test set; within a budget: the best one until then. Images per second: "
        "all that were measured by the time they took, pauses included; the table Scaling divides the images of a "
        "step by the median step."
    )
    table = Table("", HEADER, rows, 8, [note])
    return Section("Best methods", tables=[table.without_empty()] if rows else [])


def answer(findings: Findings) -> Answer | None:
    """Return speed and accuracy of the best methods, where several strategies are compared.

    Not where the suite asks for the time to a target, which another section answers.
    """
    if findings.answered_by == "deciding":
        return None
    fields: dict[int, dict[str, Winner]] = {}
    for winner in findings.winners:
        if len({strategy(candidate.fields) for candidate in winner.field.candidates}) > 1:
            fields.setdefault(id(winner.field), {})[winner.question] = winner
    lines = [line for answers in fields.values() if (line := _trade_off(answers, findings.oversubscribed))]
    return Answer(lines[0], lines[1:]) if lines else None


def _trade_off(winners: Mapping[str, Winner], oversubscribed: Collection[int]) -> str:
    """Return the most accurate and the fastest method of a field; empty where one of them is unknown."""
    if not {"accuracy", "throughput"} <= winners.keys():
        return ""
    accurate, fastest = winners["accuracy"], winners["throughput"]
    field = accurate.field
    speed = {id(candidate): reached.value for candidate, _, reached, _ in fastest.places}
    accuracy = {id(candidate): reached.value for candidate, _, reached, _ in accurate.places}
    best, quick = accurate.places[0].candidate, fastest.places[0].candidate
    alike = [candidate for candidate in (best, *accurate.rivals) if id(candidate) in speed]
    where = "".join(f"{part}: " for part in [conditions(field)] if part)
    doubts = [
        *(["one seed"] if not _has_interval(accurate) else []),
        *(["one launch"] if not (_has_interval(fastest) or is_virtual(field)) else []),
        *(["OVERSUBSCRIBED: times are doubtful"] if _shared(fastest, oversubscribed) else []),
    ]
    doubt = f" ({'; '.join(doubts)})" if doubts else ""
    reached = digits(accuracy[id(best)])
    if any(candidate is quick for candidate in alike):
        name, rate = _called(field, quick), digits(speed[id(quick)])
        return f"{where}{name} is fastest ({rate} images/s) and as accurate as any ({reached}){doubt}."
    if id(best) not in speed or id(quick) not in accuracy:
        return ""
    times = {
        id(candidate): f"{digits(speed[id(candidate)] / speed[id(best)])} times its images/s"
        for candidate in (quick, *alike)
    }
    line = (
        f"{where}{_called(field, best)} is most accurate ({reached}); {_called(field, quick)} is fastest: "
        f"{times[id(quick)]}, accuracy {digits(accuracy[id(quick)])}"
    )
    remedy = max(alike, key=lambda candidate: speed[id(candidate)])
    if remedy is not best:
        line += f"; {_called(field, remedy)} is as accurate with {times[id(remedy)]}"
    return f"{line}{doubt}."


def _shared(winner: Winner, oversubscribed: Collection[int]) -> int:
    """Return the largest number of ranks of a candidate that shared cores; 0 if none did or all is simulated."""
    if is_virtual(winner.field):
        return 0
    return max(
        (
            candidate.fields["ranks"]
            for candidate, *_ in winner.places
            if candidate.fields["ranks"] in oversubscribed
        ),
        default=0,
    )


def _labels(winner: Winner, settings: Settings) -> tuple[str, ...]:
    """Return setting, model, method and ranks; with one seed the number of methods that reached the same value."""
    alike = len(winner.rivals) + 1
    if alike > 1 and not _has_interval(winner):
        how_many = "all" if alike == len(winner.places) else str(alike)
        return (NONE, NONE, f"{how_many} alike", NONE)
    fields = winner.fields
    named = (str(fields.get("model") or NONE), names_in(winner.field)(fields), str(fields.get("ranks")))
    return (settings.name(fields) or NONE, *named)


def _has_interval(winner: Winner) -> bool:
    return math.isfinite(winner.value.low)


def _bounds(winner: Winner) -> str:
    if not _has_interval(winner):
        return f"{_single(winner)}, no interval"
    return interval(winner.value.low, winner.value.high)


def _rivals(winner: Winner) -> str:
    rivals = winner.rivals
    if len(winner.places) > 1 and not _has_interval(winner):
        return f"any other: {_single(winner)}"
    if len(rivals) > MAX_RIVALS and len(rivals) + 1 == len(winner.places):
        return "any other"
    names = [_called(winner.field, rival) for rival in rivals[:MAX_RIVALS]]
    more = [f"{len(rivals) - MAX_RIVALS} more"] if len(rivals) > MAX_RIVALS else []
    single = winner.inconclusive
    return "; ".join([*names, *more, *([f"{single} of {_single(winner)}"] if single else [])]) or NONE


def _single(winner: Winner) -> str:
    is_timed = winner.question == "throughput" and not is_virtual(winner.field)
    return "one launch" if is_timed else "one seed"


def _doubt(winner: Winner, findings: Findings) -> str:
    """Return the doubts about a winner: ranks that share cores, and candidates that were left out."""
    shared = [OVERSUBSCRIBED] if _shared(winner, findings.oversubscribed) else []
    return "; ".join([*shared, *_left_out(winner)]) or NONE


def _left_out(winner: Winner) -> list[str]:
    return [f"{winner.disturbed} DISTURBED, left out"] if winner.disturbed else []


def _called(field: Field, candidate: Candidate) -> str:
    several = len({other.fields.get("ranks") for other in field.candidates}) > 1
    return names_in(field)(candidate.fields) + (
        f" on {plural(candidate.fields.get('ranks'), 'rank')}" if several else ""
    )


def _shown(winner: Winner) -> str:
    value = digits(winner.value.value)
    return f"{value} images/s" if winner.question == "throughput" else value


SECTION = Declaration(30, page, answer=answer)
