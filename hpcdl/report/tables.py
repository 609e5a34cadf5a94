"""What goes into the tables about training: scaling, accuracy, efficiency split, winners."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hpcdl.report.document import Section, Table
from hpcdl.report.quantities import NONE, digits, interval, seconds
from hpcdl.report.seeds import NEAR_LINEAR, Scale, Scheme, problem_name, problems, scheme_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hpcdl.analysis.best import Winner
    from hpcdl.analysis.scaling import Record
    from hpcdl.report.quantities import Number

SAID: Final = {True: "yes", False: "no", None: NONE}
ACCURACY: Final = (
    *("scheme", "ranks", "seeds", "final accuracy", "final loss", "target reached"),
    *("time to target", "samples", "epochs"),
)
QUESTIONS: Final = {
    "throughput": "fastest: most images per second",
    "accuracy": "highest accuracy",
    "accuracy_in_time": "highest accuracy within a time",
    "accuracy_in_epochs": "highest accuracy within a number of epochs",
}


def scaling(records: Sequence[Record]) -> Section:
    """One table per problem: how step time and efficiency change with the number of ranks."""
    return Section("Scaling", tables=[_scaling(schemes) for schemes in problems(records)])


def _scaling(schemes: list[Scheme]) -> Table:
    predicted = any(scale.values("predicted_seconds") for scheme in schemes for scale in scheme.scales)
    header = ("scheme", "ranks", "nodes", "step", "95 %", "images/s", "speedup", "efficiency", "95 %")
    rows = [
        (
            scheme.name + (" (no communication)" if scheme.is_ceiling and scale["ranks"] > 1 else ""),
            str(scale["ranks"]),
            str(scale["nodes"] or NONE),
            seconds(scale.median("step_seconds")),
            interval(scale.low("step_seconds_low"), scale.high("step_seconds_high"), seconds),
            digits(scale.median("images_per_second")),
            digits(scale.median("speedup")),
            digits(scale.median("efficiency")),
            "base" if scale.is_base else interval(scale.low("efficiency_low"), scale.high("efficiency_high")),
            seconds(scale.median("exposed_communication_seconds")),
            *([seconds(scale.median("predicted_seconds"))] if predicted else []),
            NONE if scheme.is_ceiling or scale.is_base else SAID[scale.near_linear],
        )
        for scheme in schemes
        for scale in scheme.scales
    ]
    return Table(
        problem_name(schemes),
        (*header, "exposed comm.", *(["predicted"] if predicted else []), "near-linear"),
        rows,
        notes=[*_bases(schemes), *_several_seeds(schemes)],
    )


def _bases(schemes: Sequence[Scheme]) -> list[str]:
    """The base case and its absolute time, once where all schemes share it."""
    named: dict[str, list[str]] = {}
    for scheme in schemes:
        last = scheme.scales[-1]
        if last["base_ranks"] is None:
            named.setdefault("no base: nothing measured to compare with", []).append(scheme.name)
            continue
        own = last["base_aggregation"] == (last["aggregation"] or "none")
        whose = "its own case" if own else f"aggregation {last['base_aggregation']}"
        time = seconds(last.median("base_step_seconds"))
        text = f"base p = {last['base_ranks']} ({whose}), step {time}"
        if last["base_ranks"] > 1:
            text += "; efficiency is relative to that, not to one rank"
        named.setdefault(text, []).append(scheme.name)
    return [f"{', '.join(names)}: {text}." for text, names in named.items()]


def _several_seeds(schemes: Sequence[Scheme]) -> list[str]:
    most = max(len(scale.records) for scheme in schemes for scale in scheme.scales)
    if most == 1:
        return []
    return [f"Medians over up to {most} seeds; the bounds are the lowest and the highest of all seeds."]


def accuracy(records: Sequence[Record]) -> Section:
    """One table per problem: how well it was learned, and how soon.

    Ranks that do not communicate learn each for itself; they are left out.
    """
    tables = []
    for schemes in problems(records):
        rows = [
            _accuracy(scheme, scale)
            for scheme in schemes
            for scale in scheme.scales
            if scale.values("final_accuracy") and not (scheme.is_ceiling and scale["ranks"] > 1)
        ]
        target = schemes[0].scales[0]["target_accuracy"]
        if rows:
            note = "No target accuracy was set." if target is None else f"Target accuracy {digits(target)}."
            tables.append(Table(problem_name(schemes), ACCURACY, rows, notes=[note]))
    return Section("Accuracy", tables=tables)


def _accuracy(scheme: Scheme, scale: Scale) -> tuple[str, ...]:
    reached = len(scale.values("seconds_to_target"))
    seeds = len(scale.records)
    return (
        scheme.name,
        str(scale["ranks"]),
        str(seeds),
        _ranged(scale, "final_accuracy", digits),
        _ranged(scale, "final_loss", digits),
        NONE if scale["target_accuracy"] is None else f"{reached} of {seeds}",
        _ranged(scale, "seconds_to_target", seconds),
        _ranged(scale, "samples_to_target", lambda value: NONE if value is None else f"{value:.0f}"),
        _ranged(scale, "epochs_to_target", digits),
    )


def _ranged(scale: Scale, name: str, shown: Callable[[Number], str]) -> str:
    """The median over seeds with the range. A number some seeds never reached has neither."""
    low, high = scale.low(name), scale.high(name)
    if low is None or high is None:
        return NONE
    middle = shown(scale.median(name))
    return middle if len(scale.records) == 1 else f"{middle} ({interval(low, high, shown)})"


def split(records: Sequence[Record]) -> Section:
    """Where the efficiency went: unequal work, or communication."""
    tables = []
    for schemes in problems(records):
        rows = [
            (
                scheme.name,
                str(scale["ranks"]),
                seconds(scale.median("step_seconds")),
                seconds(scale.median("compute_seconds")),
                digits(balance),
                digits(communication),
                digits(balance * communication),
            )
            for scheme in schemes
            for scale in scheme.scales
            if (balance := scale.median("load_balance")) is not None
            and (communication := scale.median("communication_efficiency")) is not None
        ]
        if rows:
            header = ("scheme", "ranks", "step", "compute", "load balance", "communication", "product")
            tables.append(Table(problem_name(schemes), header, rows))
    note = (
        "Load balance: mean over ranks of the compute time, by that of the slowest rank. Communication: "
        "compute time of the slowest rank by the step time. The product is the share of the step in which "
        "the ranks compute."
    )
    return Section("Efficiency split", [note] if tables else [], tables=tables)


def best(found: Sequence[Winner]) -> Section:
    """Four winners per dataset."""
    rows = [
        (
            winner.dataset,
            QUESTIONS[winner.question],
            NONE
            if winner.budget is None
            else seconds(winner.budget)
            if winner.question == "accuracy_in_time"
            else f"{digits(winner.budget)} epochs",
            " ".join(str(winner.fields.get(name) or "") for name in ("model", "training")).strip(),
            scheme_name(winner.fields),
            str(winner.fields.get("ranks")),
            f"{digits(winner.value)} images/s" if winner.question == "throughput" else digits(winner.value),
            str(winner.candidates),
        )
        for winner in found
    ]
    header = ("dataset", "question", "budget", "what", "scheme", "ranks", "value", "candidates")
    notes = ["A budget is the largest that every candidate ran through. Medians over seeds."]
    return Section("What is best", tables=[Table("Winners", header, rows, 5, notes)] if rows else [])


def verdicts(records: Sequence[Record]) -> list[tuple[bool | None, str]]:
    """Per scheme: near-linear to its largest scale or not (None: unknown), and a sentence that says so."""
    found = []
    for schemes in problems(records):
        for scheme in schemes:
            if not scheme.is_ceiling:
                good, says = _verdict(scheme)
                found.append((good, f"{scheme.name} ({problem_name(schemes)}): {says}"))
    return found


def _verdict(scheme: Scheme) -> tuple[bool | None, str]:
    beyond = [scale for scale in scheme.scales if not scale.is_base]
    if not beyond:
        return None, "undecided, it ran at its base only."
    good = next((number for number, scale in enumerate(beyond) if not scale.near_linear), len(beyond))
    held = f"near-linear up to {beyond[good - 1]['ranks']} ranks" if good else ""
    told = beyond[min(good, len(beyond) - 1)]
    bounds = interval(told.low("efficiency_low"), told.high("efficiency_high"))
    says = f"efficiency {digits(told.median('efficiency'))}, 95 % {bounds}, at {told['ranks']} ranks"
    if good == len(beyond):
        return True, f"{held} ({says})."
    if told.near_linear is None:
        return None, f"{held + ', then ' if good else ''}undecided: too little data for an interval ({says})."
    missed = f"lower bound below {NEAR_LINEAR:.2f}: {says}"
    return False, f"{held}, no further ({missed})." if good else f"not near-linear ({missed})."
