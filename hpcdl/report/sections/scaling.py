"""Scaling: step time and efficiency by the number of ranks."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Final

from hpcdl.analysis.run.record_fields import keeps_step, strategy
from hpcdl.nn.volumes import FLOAT_BYTES
from hpcdl.report.formats.cells import NONE, digits, interval, percent, plural, seconds, whole
from hpcdl.report.formats.charts import Axis, Lines, Point, Series
from hpcdl.report.formats.document import Section, Table
from hpcdl.report.run.contents import Answer, Declaration, without
from hpcdl.report.run.grouping import rows
from hpcdl.report.run.near_linear import computing, count, oversubscription, overview, verdict
from hpcdl.report.sections.collectives import one_launch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpcdl.fabric.network import Network
    from hpcdl.report.run.findings import Findings
    from hpcdl.report.run.grouping import Method, Row, Scale, Settings

TITLE: Final = "Scaling"
EXPOSED: Final = "exposed_communication_seconds"
"""In a record; its bounds have the ending _low and _high."""
NOISE: Final = "~0"
RELATIVE: Final = "; efficiency is relative to that, not to one rank"
BACKWARD: Final = 2 / 3
"""Share of backward in computing: two of three products of equal size."""
SPLIT: Final = (
    "Load balance: mean over ranks of the compute time, by that of the slowest rank. Communication: compute time "
    "of the slowest rank by the step time. Their product is the share of the step in which the ranks compute."
)
POOLED: Final = (
    "1 rank exchanges nothing: cases that differ in their scheme alone are one program. Their median is shown "
    "and, instead of an interval, their range."
)
EXCHANGE: Final = (
    "r: time of the bytes of a ring on the network fitted to this run, by the time of backward. Below 1 an "
    "exchange can hide behind backward."
)

TO_TARGET: Final = (
    "To target: time until an evaluation reached the target accuracy, the median over seeds. Where batches grow "
    "with the ranks there are fewer steps only as long as a larger batch saves some."
)


def page(findings: Findings) -> Section:
    """Return one table per problem."""
    tables = [_table(methods, findings.settings, findings.network) for methods in findings.problems]
    return Section(TITLE, tables=tables, per="setting")


def _table(methods: Sequence[Method], settings: Settings, network: Network | None) -> Table:
    shown = sorted(rows(methods), key=lambda row: (-row.scale["ranks"], -(_images_per_second(row) or 0)))
    several = len({_base(row) for row in shown} - {NONE}) > 1
    bases = {(row.name, row.scale["ranks"]): row.scale for row in shown}
    header = (
        *("method", "ranks", "nodes", "step", "95 %", "images/s", "speedup", "efficiency", "efficiency 95 %"),
        "base",
        *("load balance", "communication", "input", "exposed", "exposed 95 %", "r", "predicted", "error"),
        *("to target", "speedup to target", "efficiency to target", "near-linear"),
    )
    cells = [
        (
            row.name + (" (no communication)" if row.is_ceiling else ""),
            str(scale["ranks"]),
            str(scale["nodes"] or NONE),
            seconds(row.step_seconds),
            _step_bounds(row),
            digits(_images_per_second(row)),
            *_efficiency(row),
            _base(row) if several else NONE,
            digits(scale.median("load_balance")),
            digits(scale.median("communication_efficiency")),
            percent(scale.median("input_seconds"), row.step_seconds),
            _exposed(row),
            NONE
            if _is_free(row)
            else interval(scale.low(f"{EXPOSED}_low"), scale.high(f"{EXPOSED}_high"), seconds),
            digits(_exchange_by_backward(scale, network)),
            seconds(scale.median("predicted_seconds")),
            _error(scale),
            *_to_target(row, bases),
            NONE if row.is_ceiling or scale.is_base else verdict(scale),
        )
        for row in shown
        for scale in [row.scale]
    ]
    first = methods[0].scales[0].records[0]
    records = [record for row in shown for record in row.scale.records]
    notes = [
        *([POOLED] if any(row.members for row in shown) else []),
        *_windows(shown),
        *_bases(shown),
        *_seeds(methods),
        *one_launch(records),
        *([SPLIT] if any(row.scale.values("load_balance") for row in shown) else []),
        *_input(shown),
        *_noise(cells),
        *_disturbed_ceilings(shown),
        *([TO_TARGET] if any(row.scale.values("seconds_to_target") for row in shown) else []),
        *([EXCHANGE] if any(_exchange_by_backward(row.scale, network) for row in shown) else []),
    ]
    order = "most ranks first, then most images/s"
    return Table(settings.title(first), header, cells, notes=notes, order=order).without_empty()


def _exchange_by_backward(scale: Scale, network: Network | None) -> float | None:
    """Return the time of a ring's bytes on a fitted network by the time of backward, for a replay."""
    record, ranks = scale.records[0], scale["ranks"]
    computing, parameters = record.get("modelled_compute_seconds"), record.get("parameters")
    link = network.common_link(ranks) if network and not record.get("network") else None
    if link is None or ranks == 1 or not computing or not parameters:
        return None
    return float(2 * (ranks - 1) / ranks * FLOAT_BYTES * parameters * link.beta / (BACKWARD * computing))


def _to_target(row: Row, bases: Mapping[tuple[str, int], Scale]) -> tuple[str, str, str]:
    """Return the median time to the target, and the speed-up and efficiency in it."""
    ranks, base = row.scale["ranks"], bases.get((row.name, row.scale["base_ranks"]))
    times = [_reached(scale) if scale else None for scale in (row.scale, base)]
    if times[0] is None:
        return "not reached" if any(map(_reached, bases.values())) else NONE, NONE, NONE
    if times[1] is None or base is None:
        return seconds(times[0]), NONE, NONE
    speedup = times[1] / times[0]
    return seconds(times[0]), digits(speedup), digits(speedup * base["ranks"] / ranks)


def _reached(scale: Scale) -> float | None:
    """Return the median time to the target; None if a case did not reach it."""
    times = scale.values("seconds_to_target")
    return median(times) if len(times) == len(scale.records) else None


def _error(scale: Scale) -> str:
    predicted, measured = scale.median("predicted_seconds"), scale.median("step_seconds")
    return f"{100 * (predicted / measured - 1):+.1f} %" if predicted and measured else NONE


def _images_per_second(row: Row) -> float | None:
    """The images of a step by the step that is shown."""
    known = [
        record for record in row.scale.records if record.get("images_per_second") and record.get("step_seconds")
    ]
    step = row.step_seconds
    return (
        median(record["images_per_second"] * record["step_seconds"] for record in known) / step
        if known and step
        else None
    )


def _efficiency(row: Row) -> tuple[str, str, str]:
    """Speedup, efficiency and its interval."""
    scale = row.scale
    if not row.is_compared:
        return NONE, NONE, NONE
    bounds = "base" if scale.is_base else interval(scale.low("efficiency_low"), scale.high("efficiency_high"))
    return digits(scale.median("speedup")), digits(scale.median("efficiency")), bounds


def _step_bounds(row: Row) -> str:
    """Return the interval; of pooled methods the range of their medians."""
    low, high = ("step_seconds_low", "step_seconds_high") if not row.members else ("step_seconds",) * 2
    return interval(row.scale.low(low), row.scale.high(high), seconds)


def _is_free(row: Row) -> bool:
    """Return whether it does not communicate, so that its exposed communication is 0 by definition."""
    return row.is_ceiling or row.scale["ranks"] == 1


def _exposed(row: Row) -> str:
    middle = row.scale.median(EXPOSED)
    return NOISE if middle == 0 and not _is_free(row) else seconds(middle)


def _input(shown: Sequence[Row]) -> list[str]:
    if not any(row.scale.values("input_seconds") for row in shown):
        return []
    return ["Input: share of the step in which the rank that waits longest waits for its images."]


def _noise(cells: Sequence[tuple[str, ...]]) -> list[str]:
    if not any(NOISE in row for row in cells):
        return []
    return [f"{NOISE}: no slower than without communication."]


def _disturbed_ceilings(shown: Sequence[Row]) -> list[str]:
    ranks = sorted({row.scale["ranks"] for row in shown if row.scale["ceiling_disturbed"]})
    numbers = ", ".join(map(str, ranks))
    return (
        [f"Exposed at {numbers} ranks is doubtful: the case without communication was disturbed."] if ranks else []
    )


def _windows(shown: Sequence[Row]) -> list[str]:
    strategies = [strategy(row.scale.records[0]) for row in shown if not keeps_step(row.scale.records[0])]
    note = (
        f"Step of {', '.join(dict.fromkeys(strategies))}: the mean time in which all ranks together consume a "
        "global batch, since ranks keep no common step or steps are not alike."
    )
    return [note] if strategies else []


def _base(row: Row) -> str:
    """Return ranks and step of the case that a row is compared with; a dash if there is none."""
    ranks, step = row.scale["base_ranks"], row.scale.median("base_step_seconds")
    return f"{plural(ranks, 'rank')}, step {seconds(step)}" if row.is_compared and ranks else NONE


def _bases(shown: Sequence[Row]) -> list[str]:
    """Return the base once if all rows share it; else what the column is."""
    bases = {_base(row) for row in shown} - {NONE}
    if len(bases) > 1:
        return ["Base: ranks and step of the case that efficiency and speedup are relative to."]
    relative = "" if any(row.scale["base_ranks"] == 1 for row in shown) else RELATIVE
    return [f"Base {base}{relative}." for base in bases]


def _seeds(methods: Sequence[Method]) -> list[str]:
    most = max(len(scale.records) for method in methods for scale in method.scales)
    if most == 1:
        return []
    return [f"Medians over up to {most} seeds; the bounds are the lowest and the highest of all seeds."]


def answer(findings: Findings) -> Answer | None:
    """Return the near-linear methods of one problem, or a sentence on each of several; else exposed times."""
    lines, soonest = list[str](), list[str]()
    problems: list[tuple[str, list[Method], str]] = []
    for methods in findings.problems:
        compared = [method for method in methods if method.is_compared and not method.is_ceiling]
        name = findings.settings.name(methods[0].scales[0].records[0])
        causes = computing(methods, findings.oversubscribed)
        problems += [(name, compared, "; ".join(causes))] * bool(compared)
        soonest += [f"{name}: {line}" if name else line for line in _soonest(methods)]
        own = [*causes * (not name), *_least_exposed(methods)]
        lines += [f"{name}: {line}" if name else line for line in own]
    if len(problems) == 1:
        lines = [count(problems[0][1], findings.oversubscribed), *lines]
    elif problems:
        ordered = sorted((overview(*problem) for problem in problems), key=lambda pair: -pair[0])
        headline, *others = (line for _, line in ordered)
        ends = [method.scales[-1] for _, methods, _ in problems for method in methods]
        lines = [headline + oversubscription(ends, findings.oversubscribed), *others, *lines]
    lines = [*soonest, *lines]
    return Answer(lines[0], lines[1:]) if lines else None


def _soonest(methods: Sequence[Method]) -> list[str]:
    """Return on how many ranks the target is reached first, and what that gains, if ranks of one method differ."""
    known = [
        (time, base_time, scale, method.scales[0])
        for method in methods
        if len(method.scales) > 1 and not method.is_ceiling
        for base_time in [_reached(method.scales[0])]
        for scale in method.scales[1:]
        if (time := _reached(scale)) is not None and base_time is not None
    ]
    if not known:
        return []
    time, base_time, scale, base = min(known, key=lambda one: one[0])
    target = percent(base["target_accuracy"], 1)
    if time >= base_time:
        return [f"{target} soonest on {plural(base['ranks'], 'rank')}."]
    faster, images = digits(base_time / time), digits(scale.median("speedup"))
    on = f"{plural(scale['ranks'], 'rank')}: {faster} times as fast as on {base['ranks']}"
    return [f"{target} soonest on {on}, with {images} times the images a second."]


def _least_exposed(methods: Sequence[Method]) -> list[str]:
    """Return the methods with the least and the most exposed communication at the largest scale of all.

    Methods that were disturbed, or whose case without communication was, are left out.
    """
    largest = max(method.scales[-1]["ranks"] for method in methods)
    known = [
        (time / step, time, method.name)
        for method in methods
        for scale in method.scales[-1:]
        if scale["ranks"] == largest > 1 and not method.is_ceiling
        if not (scale.disturbed or scale["ceiling_disturbed"])
        for time, step in [(scale.median(EXPOSED), scale.median("step_seconds"))]
        if time is not None and step
    ]
    if len(known) < 2:
        return []
    parts = [
        f"{name} {percent(part, 1)} of its step ({_time(time)})" for part, time, name in (min(known), max(known))
    ]
    return [f"Exposed communication at {plural(largest, 'rank')}: least {parts[0]}, most {parts[1]}."]


def _time(exposed: float) -> str:
    return NOISE if exposed == 0 else seconds(exposed)


def charts(findings: Findings) -> list[Lines]:
    """Return one chart per problem with several numbers of ranks, that with most scales first."""
    drawn = [
        _speedup(methods, findings.settings.title(methods[0].scales[0].records[0]))
        for methods in findings.problems
    ]
    return sorted(filter(None, drawn), key=lambda chart: -sum(len(line.points) for line in chart.series))


def _speedup(methods: Sequence[Method], title: str) -> Lines | None:
    series = [
        Series(_curve_name(method), points, "ceiling" if method.is_ceiling else "method")
        for method in methods
        if method.is_compared and (points := _speedup_points(method))
    ]
    if all(len(line.points) == 1 for line in series):
        return None
    ranks = sorted({point.x for line in series for point in line.points})
    ordered = sorted(series, key=lambda line: (line.role == "ceiling", -line.points[-1].x, -line.points[-1].y))
    ideal = Series("ideal", [Point(ranks[0], ranks[0]), Point(ranks[-1], ranks[-1])], "reference")
    return Lines(
        f"Speedup{': ' if title else ''}{title}",
        Axis("ranks", whole, 2, ranks),
        Axis("speedup", digits, 2),
        [*ordered, ideal],
        "Speedup: efficiency times ranks; bars are 95 % intervals. Ideal: equal to the number of ranks.",
    )


def _curve_name(method: Method) -> str:
    return method.name + (" (no communication)" if method.is_ceiling else "")


def _speedup_points(method: Method) -> list[Point]:
    points = []
    for scale in method.scales:
        ranks, value = scale["ranks"], scale.median("efficiency")
        low, high = scale.low("efficiency_low"), scale.high("efficiency_high")
        if value:
            bounds = (None, None) if low is None or high is None else (low * ranks, high * ranks)
            points.append(Point(ranks, value * ranks, *bounds))
    return points


SECTION = Declaration(
    50,
    page,
    terminal=without(
        *(
            "nodes",
            "95 %",
            "speedup",
            "efficiency 95 %",
            "base",
            "load balance",
            "communication",
            "input",
            "exposed 95 %",
        )
    ),
    answer=answer,
    figures=(charts,),
)
