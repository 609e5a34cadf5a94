"""Scaling: step time and efficiency by the number of ranks, and which methods are near-linear."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from statistics import median
from typing import Final

import numpy as np

from hpcdl.analysis.run.scaling import NEAR_LINEAR
from hpcdl.analysis.statistics.differences import ALPHA, adjusted, difference
from hpcdl.fabric.network import Network
from hpcdl.nn.layers.volumes import FLOAT_BYTES
from hpcdl.report.formats.cells import NONE, digits, interval, percent, plural, seconds, spread, whole
from hpcdl.report.formats.document import Axis, Lines, Point, Section, Series, Table
from hpcdl.report.run.contents import Answer, Declaration, without
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.grouping import Method, Row, Scale, Settings, rows
from hpcdl.report.sections.collectives import one_launch
from hpcdl.report.verdicts import Verdict

EXPOSED: Final = "exposed_communication_seconds"
"""In a record; its bounds have the ending _low and _high."""
NOISE: Final = "~0"
BACKWARD: Final = 2 / 3
"""Share of backward in computing: two of three products of equal size."""
HEADER: Final = (
    *("method", "ranks", "nodes", "step", "95 %", "images/s", "speedup", "efficiency", "efficiency 95 %", "base"),
    *("load balance", "communication", "input", "exposed", "exposed 95 %", "r", "predicted", "error"),
    *("to target", "near-linear", "simulated ranks"),
)
BASE: Final = "Base: ranks and step of the case that efficiency and speedup are relative to."
COLUMN_NOTES: Final = {
    "images/s": "Images/s: all measured images by the time that they took, pauses included. Steps are medians.",
    "load balance": (
        "Load balance: mean over ranks of the compute time, by that of the slowest rank. Communication: compute "
        "time of the slowest rank by the step time. Their product is the share of the step in which ranks compute."
    ),
    "input": "Input: share of the step in which the rank that waits longest waits for its images.",
    "r": (
        "r: time of the bytes of a ring on the network fitted to this run, by the time of backward. Below 1 an "
        "exchange can hide behind backward."
    ),
    "to target": (
        "To target: time until an evaluation reached the target accuracy, the median over seeds. Where batches "
        "grow with the ranks there are fewer steps only as long as a larger batch saves some."
    ),
    "simulated ranks": "Simulated ranks: those that stand for all by symmetry; all, where there is none.",
}
"""Note by column, if the column is not empty."""
POOLED: Final = (
    "1 rank exchanges nothing: cases that differ in their scheme alone are one program. Their median is shown "
    "and, instead of an interval, their range."
)


def page(findings: Findings) -> Section:
    """Return one table per problem."""
    network = findings.predicted.priced.network if findings.predicted else None
    tables = [_table(methods, findings.settings, network) for methods in findings.problems]
    return Section("Scaling", tables=tables, per="setting")


def _table(methods: Sequence[Method], settings: Settings, network: Network | None) -> Table:
    shown = sorted(
        rows(methods), key=lambda row: (-row.scale.record.ranks, -(row.scale.median("images_per_second") or 0))
    )
    bases = {_base(row) for row in shown} - {NONE}
    reached = any(_reached(row.scale) for row in shown)
    cells = [
        (
            row.name + (" (no communication)" if row.is_ceiling else ""),
            str(row.scale.record.ranks),
            str(row.scale.record.nodes or NONE),
            seconds(row.step_seconds),
            _step_bounds(row),
            digits(row.scale.median("images_per_second")),
            *_efficiency(row),
            _base(row) if len(bases) > 1 else NONE,
            digits(row.scale.median("load_balance")),
            digits(row.scale.median("communication_efficiency")),
            percent(row.scale.median("input_seconds"), row.step_seconds),
            *_exposed(row),
            digits(_exchange_by_backward(row.scale, network)),
            *_predicted(row.scale),
            seconds(_reached(row.scale)) if _reached(row.scale) or not reached else "not reached",
            NONE if row.is_ceiling or row.scale.is_base else verdict(row.scale),
            str(row.scale.record.simulated_ranks or NONE),
        )
        for row in shown
    ]
    order = "most ranks first, then most images/s"
    title = settings.title(methods[0].record)
    table = Table(title, HEADER, cells, order=order, key="near-linear").without_empty()
    table.notes.extend(_notes(methods, shown, bases))
    table.notes.extend(note for column, note in COLUMN_NOTES.items() if column in table.header)
    return table


def _notes(methods: Sequence[Method], shown: Sequence[Row], bases: Collection[str]) -> list[str]:
    free = [row.scale.records[0].strategy for row in shown if not row.scale.records[0].keeps_step]
    seeds = max(len(scale.records) for method in methods for scale in method.scales)
    doubtful = sorted({row.scale.record.ranks for row in shown if row.scale.record.ceiling_disturbed})
    single = any(row.scale.record.base_ranks == 1 for row in shown)
    relative = "" if single else "; efficiency is relative to that, not to one rank"
    notes = {
        POOLED: any(row.members for row in shown),
        f"Step of {', '.join(dict.fromkeys(free))}: the mean time in which all ranks together consume a global "
        "batch, since ranks keep no common step or steps are not alike.": bool(free),
        **({BASE: True} if len(bases) > 1 else {f"Base {base}{relative}.": True for base in bases}),
        f"Medians over up to {seeds} seeds; the bounds are the lowest and the highest of all seeds.": seeds > 1,
        **dict.fromkeys(one_launch(record for row in shown for record in row.scale.records), True),
        f"{NOISE}: no slower than without communication.": any(_exposed(row)[0] == NOISE for row in shown),
        f"Exposed at {', '.join(map(str, doubtful))} ranks is doubtful: the case without communication was "
        "disturbed.": bool(doubtful),
    }
    return [note for note, applies in notes.items() if applies]


def _reached(scale: Scale) -> float | None:
    times = scale.values("seconds_to_target")
    return median(times) if len(times) == len(scale.records) else None


def _exchange_by_backward(scale: Scale, network: Network | None) -> float | None:
    """Return the time of a ring's bytes on a fitted network by the time of backward, for a replay."""
    record, ranks = scale.records[0], scale.record.ranks
    computing, parameters = record.modelled_compute_seconds, record.parameters
    link = network.common_link(ranks) if network and not record.network else None
    if link is None or ranks == 1 or not computing or not parameters:
        return None
    return float(2 * (ranks - 1) / ranks * FLOAT_BYTES * parameters * link.beta / (BACKWARD * computing))


def _predicted(scale: Scale) -> tuple[str, str]:
    predicted, measured = scale.median("predicted_seconds"), scale.median("step_seconds")
    error = f"{100 * (predicted / measured - 1):+.1f} %" if predicted and measured else NONE
    return seconds(predicted), error


def _efficiency(row: Row) -> tuple[str, str, str]:
    scale = row.scale
    if not row.is_compared:
        return NONE, NONE, NONE
    bounds = "base" if scale.is_base else interval(scale.low("efficiency_low"), scale.high("efficiency_high"))
    return digits(scale.median("speedup")), digits(scale.median("efficiency")), bounds


def _step_bounds(row: Row) -> str:
    """Return the interval; of pooled methods the range of their medians."""
    low, high = ("step_seconds_low", "step_seconds_high") if not row.members else ("step_seconds",) * 2
    return interval(row.scale.low(low), row.scale.high(high), seconds)


def _exposed(row: Row) -> tuple[str, str]:
    """Return exposed communication and its interval; 0 by definition without communication."""
    middle = row.scale.median(EXPOSED)
    if row.is_ceiling or row.scale.record.ranks == 1:
        return seconds(middle), NONE
    bounds = interval(row.scale.low(f"{EXPOSED}_low"), row.scale.high(f"{EXPOSED}_high"), seconds)
    return NOISE if middle == 0 else seconds(middle), bounds


def _base(row: Row) -> str:
    ranks, step = row.scale.record.base_ranks, row.scale.median("base_step_seconds")
    return f"{plural(ranks, 'rank')}, step {seconds(step)}" if row.is_compared and ranks else NONE


def verdict(scale: Scale) -> str:
    """Return whether a case is near-linear: yes, no, disturbed, or inconclusive with the reason."""
    if scale.disturbed:
        return "disturbed"
    if scale.near_linear is not None:
        return "yes" if scale.near_linear else "no"
    low, high = scale.low("efficiency_low"), scale.high("efficiency_high")
    if scale.is_one_launch:
        reason = "one launch"
    elif low is None or high is None:
        reason = "too few steps for an interval"
    elif low < NEAR_LINEAR <= high:
        reason = f"{NEAR_LINEAR:.2f} is inside the interval"
    else:
        reason = "too many cases for this difference"
    return f"inconclusive: {reason}"


def answer(findings: Findings) -> Answer | None:
    """Return how far each problem is near-linear, and with which method; else exposed times."""
    further, soonest = list[Verdict](), list[Verdict]()
    problems: list[tuple[str, list[Method]]] = []
    for methods in findings.problems:
        compared = [method for method in methods if method.is_compared and not method.is_ceiling]
        compared = [method for method in compared if method.scales[-1].values("efficiency")]
        name = findings.settings.name(methods[0].record)
        problems += [(name or str(methods[0].record.model), compared)] * bool(compared)
        soonest += _soonest(name, methods)
        further += _least_exposed(name, methods)
    problems.sort(key=lambda problem: -max(method.scales[-1].record.ranks for method in problem[1]))
    ends = [method.scales[-1] for _, methods in problems for method in methods]
    if problems:
        ordered = sorted((_overview(*problem) for problem in problems), key=lambda pair: -pair[0])
        headline, *others = (verdict for _, verdict in ordered)
        shared = ", ".join(map(str, sorted({end.record.ranks for end in ends if end.record.oversubscribed})))
        cause = f"OVERSUBSCRIBED: at {shared} ranks they share cores, which does not measure scaling."
        further = [replace(headline, cause=cause if shared else ""), *others, *further]
    lines = [verdict.sentence for verdict in (*soonest, *further)]
    return Answer(lines[0], lines[1:]) if lines else None


def _overview(name: str, methods: Sequence[Method]) -> tuple[int, Verdict]:
    """Return how many ranks the methods of one problem reach near-linearly, and a verdict on the best one."""
    beyond = [[scale for scale in method.scales if not scale.is_base] for method in methods]
    held = [
        next((number for number, scale in enumerate(scales) if not scale.near_linear), len(scales))
        for scales in beyond
    ]
    ranks = [scales[number - 1].record.ranks if number else 0 for scales, number in zip(beyond, held, strict=True)]
    place = max(
        range(len(methods)), key=lambda place: (ranks[place], _end(methods[place]))
    )  # the first of equal ones
    most = ranks[place]
    if most:
        reached = held[place]
        near = beyond[place][reached - 1]
        at = [one.near_linear for scales in beyond for one in scales if one.record.ranks == near.record.ranks]
        open_ones = f", {at.count(None)} undecided" if None in at else ""
        bounds = interval(near.low("efficiency_low"), near.high("efficiency_high"))
        facts = {
            "efficiency": digits(near.median("efficiency")) + (f", {bounds}" if bounds != NONE else ""),
            "ranks": ("up to " if reached < len(beyond[place]) else "at ") + plural(near.record.ranks, "rank"),
            "method": methods[place].name,
            "others": f"; near-linear: {at.count(True)} of {len(at)} methods{open_ones}" if len(at) > 1 else "",
        }
        return near.record.ranks, Verdict(topic="scaling", word="near-linear", case=name, facts=facts)
    ends = [method.scales[-1] for method in methods]
    reasons = dict.fromkeys(verdict(end) for end in ends if end.near_linear is None)
    bounds = interval(ends[0].low("efficiency_low"), ends[0].high("efficiency_high")) if len(ends) == 1 else NONE
    efficiency = f"efficiency {spread(map(_end, methods))}" + (f", {bounds}" if bounds != NONE else "")
    failed = sum(end.near_linear is False for end in ends) > len(ends) / 2
    known = [scale for method in methods for scale in method.scales if scale.values("speedup")]
    fastest = max(known, key=lambda scale: scale.median("speedup") or 0.0)
    least, last = beyond[place][0], beyond[place][-1].record.ranks
    below = failed and least.near_linear is False and least.record.ranks < last
    facts = {
        "speedup": f"{digits(fastest.median('speedup'))} on {fastest.record.ranks}",
        "ranks": plural(last, "rank") + (f", nor at {least.record.ranks}" if below else ""),
        "range": "; ".join([efficiency, *(() if failed else reasons)]),
    }
    word = "not near-linear" if failed else "inconclusive"
    return 0, Verdict(topic="scaling", word=word, case=name, facts=facts)


def _end(method: Method) -> float:
    return method.scales[-1].median("efficiency") or 0.0


def _soonest(name: str, methods: Sequence[Method]) -> list[Verdict]:
    """Return on how many ranks the target is reached first, if ranks of one method differ.

    Welch's test of the logarithms of the seeds' times tells other numbers of ranks of that method from it.
    """
    known = [
        (time, method, scale)
        for method in methods
        if len(method.scales) > 1 and not method.is_ceiling and _reached(method.scales[0]) is not None
        for scale in method.scales
        if (time := _reached(scale)) is not None
    ]
    if all(scale is method.scales[0] for _, method, scale in known):
        return []
    _, method, best = min(known, key=lambda one: one[0])
    others = [scale for scale in method.scales if scale is not best and _reached(scale) is not None]
    times = [np.log(scale.values("seconds_to_target")) for scale in (best, *others)]
    later = difference(times[:1] * len(others), times[1:])
    ratio, low, high = np.exp([later.value[0], *(bound[0] for bound in later.bounds())])
    apart = adjusted(later.p) < ALPHA
    near = ", ".join(str(scale.record.ranks) for scale, told in zip(others, apart, strict=True) if not told)
    base, seeds = method.scales[0], len(best.records)
    facts = {
        "of": f"{name}: " if name else "",
        "target": percent(best.record.target_accuracy, 1),
        "ranks": plural(best.record.ranks, "rank"),
        "faster": digits(ratio) + (f" ({interval(low, high)})" if seeds > 1 else ""),
        "base": str(base.record.ranks),
        "speedup": digits(best.median("speedup")),
        "seeds": plural(seeds, "seed"),
        "near": f"; not distinguished from {near}" if near else "",
    }
    told = "soonest" if seeds > 1 else "soonest of one seed"
    word = "soonest on the base" if best is base else told if apart[0] or seeds == 1 else "not distinguished"
    return [Verdict(topic="scaling", word=word, case=name, facts=facts)]


def _least_exposed(name: str, methods: Sequence[Method]) -> list[Verdict]:
    """Return the methods with the least and the most exposed communication at the largest scale of all.

    Methods that were disturbed, or whose case without communication was, are left out.
    """
    largest = max(method.scales[-1].record.ranks for method in methods)
    known = [
        (time / step, NOISE if time == 0 else seconds(time), method.name)
        for method in methods
        for scale in method.scales[-1:]
        if scale.record.ranks == largest > 1 and not method.is_ceiling
        if not (scale.disturbed or scale.record.ceiling_disturbed)
        for time, step in [(scale.median(EXPOSED), scale.median("step_seconds"))]
        if time is not None and step
    ]
    if len(known) < 2:
        return []
    least, most = (
        f"{method} {percent(part, 1)} of its step ({time})" for part, time, method in (min(known), max(known))
    )
    facts = {"of": f"{name}: " if name else "", "ranks": plural(largest, "rank"), "least": least, "most": most}
    return [Verdict(topic="scaling", word="exposed", case=name, facts=facts)]


def charts(findings: Findings) -> list[Lines]:
    """Return one chart per problem with several numbers of ranks, the most ranks first."""
    drawn = [_speedup(methods, findings.settings) for methods in findings.problems]
    return sorted(filter(None, drawn), key=lambda chart: -max(chart.x.ticks))


def times_to_target(findings: Findings) -> list[Lines]:
    """Return one chart of the time to the target over ranks, of all methods that reach it on several."""
    series = []
    for methods in findings.problems:
        setting = findings.settings.name(methods[0].record)
        for method in methods:
            reached = [scale for scale in method.scales if _reached(scale) is not None]
            points = [
                Point(scale.record.ranks, median(times), min(times), max(times))
                for scale in reached
                for times in [scale.values("seconds_to_target")]
            ]
            series += [Series(", ".join(filter(None, (setting, method.name))), points)] * (len(points) > 1)
    if not series:
        return []
    axis = Axis("ranks", whole, 2, sorted({point.x for line in series for point in line.points}))
    note = "Medians over seeds, bars are their range. Ranks without a value have a seed that missed the target."
    return [Lines("Time to the target over ranks", axis, Axis("time to the target", seconds, 2), series, note)]


def _speedup(methods: Sequence[Method], settings: Settings) -> Lines | None:
    series = [
        Series(
            method.name + (" (no communication)" if method.is_ceiling else ""),
            points,
            "ceiling" if method.is_ceiling else "method",
        )
        for method in methods
        if method.is_compared and (points := _speedup_points(method))
    ]
    if all(len(line.points) == 1 for line in series):
        return None
    ranks = sorted({point.x for line in series for point in line.points})
    ordered = sorted(series, key=lambda line: (line.role == "ceiling", -line.points[-1].x, -line.points[-1].y))
    ideal = Series("ideal", [Point(ranks[0], ranks[0]), Point(ranks[-1], ranks[-1])], "reference")
    return Lines(
        ": ".join(filter(None, ("Speedup", settings.name(methods[0].record)))),
        Axis("ranks", whole, 2, ranks),
        Axis("speedup", digits, 2),
        [*ordered, ideal],
        f"{settings.further(methods[0].record)}Speedup: efficiency times ranks; bars are 95 % intervals. "
        "Ideal: equal to the number of ranks.",
    )


def _speedup_points(method: Method) -> list[Point]:
    points = []
    for scale in method.scales:
        ranks, value = scale.record.ranks, scale.median("efficiency")
        low, high = scale.low("efficiency_low"), scale.high("efficiency_high")
        if value:
            bounds = (None, None) if low is None or high is None else (low * ranks, high * ranks)
            points.append(Point(ranks, value * ranks, *bounds))
    return points


SECTION = Declaration(
    50,
    page,
    terminal=without(
        *("nodes", "95 %", "speedup", "efficiency 95 %", "base", "load balance", "communication", "input"),
        "exposed 95 %",
    ),
    answer=answer,
    figures=(charts, times_to_target),
)
