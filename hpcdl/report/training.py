"""What goes into the tables about training: scaling, accuracy, efficiency split."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hpcdl.analysis.fields import keeps_step, strategy
from hpcdl.report.document import Section, Table
from hpcdl.report.quantities import NONE, digits, interval, percent, plural, seconds, spread
from hpcdl.report.seeds import Method, Row, Scale, rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hpcdl.report.quantities import Number
    from hpcdl.report.settings import Settings

SAID: Final = {True: "yes", False: "no", None: "undecided"}
EXPOSED: Final = "exposed_communication_seconds"
"""In a record; its bounds have the ending _low and _high."""
NOISE: Final = "~0"
ACCURACY: Final = (
    *("method", "ranks", "final accuracy", "best accuracy", "final loss", "target reached"),
    *("time to target", "samples", "epochs"),
)


def scaling(groups: Sequence[Sequence[Method]], settings: Settings) -> Section:
    """One table per problem: how step time and efficiency change with the number of ranks."""
    tables = [_scaling(methods, settings) for methods in groups]
    return Section("Scaling", tables=tables)


def _scaling(methods: Sequence[Method], settings: Settings) -> Table:
    shown = rows(methods)
    header = (
        *("method", "ranks", "nodes", "step", "95 %", "images/s", "speedup", "efficiency", "efficiency 95 %"),
        *("input", "exposed", "exposed 95 %", "predicted", "near-linear"),
    )
    cells = [
        (
            row.name + (" (no communication)" if row.is_ceiling else ""),
            str(scale["ranks"]),
            str(scale["nodes"] or NONE),
            seconds(scale.median("step_seconds")),
            _step_bounds(row),
            digits(scale.median("images_per_second")),
            *_efficiency(row),
            percent(scale.median("input_seconds"), scale.median("step_seconds")),
            _exposed(scale),
            NONE
            if _is_free(row)
            else interval(scale.low(f"{EXPOSED}_low"), scale.high(f"{EXPOSED}_high"), seconds),
            seconds(scale.median("predicted_seconds")),
            NONE if row.is_ceiling or scale.is_base else SAID[scale.near_linear],
        )
        for row in shown
        for scale in [row.scale]
    ]
    first = methods[0].scales[0].records[0]
    notes = [*_pools(shown), *_paces(shown), *_bases(methods), *_seeds(methods), *_input(shown), *_noise(cells)]
    return Table(settings.title(first), header, cells, notes=notes).without_empty()


def _efficiency(row: Row) -> tuple[str, str, str]:
    """Speedup, efficiency and its interval."""
    scale = row.scale
    if not row.is_compared:
        return NONE, NONE, NONE
    bounds = "base" if scale.is_base else interval(scale.low("efficiency_low"), scale.high("efficiency_high"))
    return digits(scale.median("speedup")), digits(scale.median("efficiency")), bounds


def _step_bounds(row: Row) -> str:
    """The interval; where a row stands for several methods, the range of their medians."""
    low, high = ("step_seconds_low", "step_seconds_high") if not row.members else ("step_seconds",) * 2
    return interval(row.scale.low(low), row.scale.high(high), seconds)


def _is_free(row: Row) -> bool:
    """Whether it communicates nothing, so that its exposed communication is 0 by definition."""
    return row.is_ceiling or row.scale["ranks"] == 1


def _exposed(scale: Scale) -> str:
    """A time below 0 is noise if 0 is inside its interval."""
    middle, high = scale.median(EXPOSED), scale.high(f"{EXPOSED}_high")
    return NOISE if middle is not None and middle < 0 and (high is not None and high >= 0) else seconds(middle)


def _input(shown: Sequence[Row]) -> list[str]:
    if not any(row.scale.values("input_seconds") for row in shown):
        return []
    return ["Input: share of the step in which the rank that waits longest waits for its images."]


def _noise(cells: Sequence[tuple[str, ...]]) -> list[str]:
    if not any(NOISE in row for row in cells):
        return []
    return [f"{NOISE}: faster than without communication, but within noise: 0 is inside the interval."]


def _pools(shown: Sequence[Row]) -> list[str]:
    return [
        f"{row.name}: nothing is exchanged, so the {len(row.scale.records)} cases are one program; "
        "their median and, instead of an interval, their range."
        for row in shown
        if row.members
    ]


def _paces(shown: Sequence[Row]) -> list[str]:
    strategies = [strategy(row.scale.records[0]) for row in shown if not keeps_step(row.scale.records[0])]
    note = (
        f"Step of {', '.join(dict.fromkeys(strategies))}: the mean time in which all ranks together consume a "
        "global batch, since ranks keep no common step or steps are not alike."
    )
    return [note] if strategies else []


def _bases(methods: Sequence[Method]) -> list[str]:
    """The base case and its absolute time, once where all methods share it."""
    named: dict[str, list[str]] = {}
    for one in [one for one in methods if one.is_compared]:
        last = one.scales[-1]
        if last["base_ranks"] is None:
            named.setdefault("no base: nothing measured to compare with", []).append(one.name)
            continue
        text = f"base {plural(last['base_ranks'], 'rank')}, step {seconds(last.median('base_step_seconds'))}"
        if last["base_ranks"] > 1:
            text += "; efficiency is relative to that, not to one rank"
        named.setdefault(text, []).append(one.name)
    if len(named) == 1:
        (text,) = named
        return [f"{text[0].upper()}{text[1:]}."]
    return [f"{', '.join(names)}: {text}." for text, names in named.items()]


def _seeds(methods: Sequence[Method]) -> list[str]:
    most = max(len(scale.records) for one in methods for scale in one.scales)
    if most == 1:
        return []
    return [f"Medians over up to {most} seeds; the bounds are the lowest and the highest of all seeds."]


def accuracy(groups: Sequence[Sequence[Method]], settings: Settings) -> Section:
    """One table per problem: how well it was learned, and how soon.

    Ranks that do not communicate learn each for itself; they are left out.
    """
    tables = []
    for methods in groups:
        learned = [
            one
            for row in rows(methods)
            if row.scale.values("final_accuracy") and not row.is_ceiling
            for one in ([row] if _learned_alike(row.scale) else row.members)
        ]
        first = methods[0].scales[0].records[0]
        target = first["target_accuracy"]
        if not learned:
            continue
        notes = ["No target accuracy was set." if target is None else f"Target accuracy {digits(target)}."]
        if any(len(row.scale.records) > 1 for row in learned):
            notes.append("Medians, with their range where they differ, over seeds and over pooled methods.")
        table = Table(settings.title(first), ACCURACY, [_accuracy(row) for row in learned], notes=notes)
        missed = target is not None and any(
            len(row.scale.values("seconds_to_target")) < len(row.scale.records) for row in learned
        )
        tables.append((table if missed else table.without("best accuracy")).without_empty())
    return Section("Accuracy", tables=tables)


def _learned_alike(scale: Scale) -> bool:
    """Whether the same seed learned the same in all of its records, to the digits that are shown."""
    learned: dict[Any, set[tuple[str, str]]] = {}
    for record in scale.records:
        shown = (digits(record["final_accuracy"]), digits(record["final_loss"]))
        learned.setdefault(record["seed"], set()).add(shown)
    return all(len(different) == 1 for different in learned.values())


def _accuracy(row: Row) -> tuple[str, ...]:
    scale = row.scale
    reached, tried = len(scale.values("seconds_to_target")), len(scale.records)
    answer = f"{reached} of {tried}" if tried > 1 else "yes" if reached else "no"
    return (
        row.name,
        str(scale["ranks"]),
        _ranged(scale, "final_accuracy", digits),
        _ranged(scale, "best_accuracy", digits),
        _ranged(scale, "final_loss", digits),
        NONE if scale["target_accuracy"] is None else answer,
        _ranged(scale, "seconds_to_target", seconds),
        _ranged(scale, "samples_to_target", lambda value: NONE if value is None else f"{value:.0f}"),
        _ranged(scale, "epochs_to_target", digits),
    )


def _ranged(scale: Scale, name: str, shown: Callable[[Number], str]) -> str:
    """The median with the range if there is one. A number that some seeds never reached has neither."""
    low, high = scale.low(name), scale.high(name)
    if low is None or high is None:
        return NONE
    return shown(low) if low == high else spread(scale.median(name), low, high, shown)


def split(groups: Sequence[Sequence[Method]], settings: Settings) -> Section:
    """Where the efficiency went: unequal work, or communication."""
    tables = []
    header = ("method", "ranks", "step", "compute", "load balance", "communication efficiency", "product")
    for methods in groups:
        cells = [
            (
                row.name,
                str(row.scale["ranks"]),
                seconds(row.scale.median("step_seconds")),
                seconds(row.scale.median("compute_seconds")),
                digits(balance),
                digits(communication),
                digits(balance * communication),
            )
            for row in rows(methods)
            if (balance := row.scale.median("load_balance")) is not None
            and (communication := row.scale.median("communication_efficiency")) is not None
        ]
        if cells:
            tables.append(Table(settings.title(methods[0].scales[0].records[0]), header, cells))
    note = (
        "Load balance: mean over ranks of the compute time, by that of the slowest rank. Communication: "
        "compute time of the slowest rank by the step time. The product is the share of the step in which "
        "the ranks compute."
    )
    return Section("Efficiency split", [note] if tables else [], tables=tables)
