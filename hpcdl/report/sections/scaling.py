"""Scaling: step time and efficiency by the number of ranks, and which methods are near-linear."""

import statistics
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from hpcdl.analysis.run.record import Record
from hpcdl.analysis.run.scaling import NEAR_LINEAR
from hpcdl.analysis.statistics.differences import ALPHA, adjusted, difference
from hpcdl.fabric.network import Network
from hpcdl.nn.layers.volumes import FLOAT_BYTES
from hpcdl.report.formats.cells import NONE, digits, interval, percent, plural, seconds, spread, whole
from hpcdl.report.formats.document import Axis, Column, Lines, Point, Section, Series, Table, table
from hpcdl.report.formats.verdicts import Verdict
from hpcdl.report.run.columns import RANKS, median, stated
from hpcdl.report.run.declaration import Answer, Declaration
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.grouping import Method, Row, Scale, Settings, rows
from hpcdl.report.sections.collectives import one_launch
from hpcdl.report.sections.overlap import NOISE, least_exposed
from hpcdl.trace.quantity import Quantity

BACKWARD: Final = 2 / 3
"""Share of backward in computing: two of three products of equal size."""
BASE: Final = "Base: ranks and step of the case that efficiency and speedup are relative to."
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
        rows(methods),
        key=lambda row: (-row.scale.record.ranks, -(row.scale.median(Record.images_per_second) or 0)),
    )
    bases = {_base(row) for row in shown} - {NONE}
    return table(
        _columns(network, several_bases=len(bases) > 1, reached=any(_reached(row.scale) for row in shown)),
        shown,
        settings.title(methods[0].record),
        _notes(methods, shown, bases),
        order="most ranks first, then most images/s",
    )


def _columns(network: Network | None, *, several_bases: bool, reached: bool) -> list[Column[Row]]:
    """Return the columns; ``reached``: a method of the table reached its target."""
    missed = "not reached" if reached else NONE
    return [
        Column("method", lambda row: row.name + (" (no communication)" if row.no_communication else "")),
        RANKS,
        stated(Record.nodes, importance="detail"),
        Column("step", lambda row: seconds(row.step_seconds)),
        Column("95 %", _step_bounds),
        median(
            Record.images_per_second,
            note="Images/s: all measured images by the time that they took, pauses included. Steps are medians.",
        ),
        Column("speedup", lambda row: digits(_compared(row, Record.speedup)), importance="detail"),
        Column("efficiency", lambda row: digits(_compared(row, Record.efficiency)), importance="answer"),
        Column("efficiency 95 %", _efficiency_bounds, importance="answer"),
        Column("base", lambda row: _base(row) if several_bases else NONE, importance="detail"),
        median(
            Record.load_balance,
            note="Load balance: mean over ranks of the compute time, by that of the slowest rank. Communication: "
            "compute time of the slowest rank by the step time. Their product is the share of the step in which "
            "ranks compute.",
            importance="detail",
        ),
        median(Record.communication_efficiency, importance="detail"),
        Column(
            "input",
            lambda row: percent(row.scale.median(Record.input_seconds), row.step_seconds),
            "Input: share of the step in which the rank that waits longest waits for its images.",
            importance="detail",
        ),
        Column("exposed", _exposed),
        Column("exposed 95 %", _exposed_bounds, importance="detail"),
        Column(
            "r",
            lambda row: digits(_exchange_by_backward(row.scale, network)),
            "r: time of the bytes of a ring on the network fitted to this run, by the time of backward. Below 1 "
            "an exchange can hide behind backward.",
        ),
        median(Record.predicted_seconds),
        Column("error", _prediction_error),
        Column(
            "to target",
            lambda row: seconds(reach) if (reach := _reached(row.scale)) else missed,
            "To target: time until an evaluation reached the target accuracy, the median over seeds. Where "
            "batches grow with the ranks there are fewer steps only as long as a larger batch saves some.",
            importance="answer",
        ),
        Column(
            "near-linear",
            lambda row: NONE if row.no_communication or row.scale.is_base else verdict(row.scale),
            importance="answer",
        ),
        stated(
            Record.simulated_ranks,
            "Simulated ranks: those that stand for all by symmetry; all, where there is none.",
            importance="detail",
        ),
    ]


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
        f"{NOISE}: no slower than without communication.": any(_exposed(row) == NOISE for row in shown),
        f"Exposed at {', '.join(map(str, doubtful))} ranks is doubtful: the case without communication was "
        "disturbed.": bool(doubtful),
    }
    return [note for note, applies in notes.items() if applies]


def _reached(scale: Scale) -> float | None:
    times = scale.values(Record.seconds_to_target)
    return statistics.median(times) if len(times) == len(scale.records) else None


def _exchange_by_backward(scale: Scale, network: Network | None) -> float | None:
    """Return the time of a ring's bytes on a fitted network by the time of backward, for a replay."""
    record, ranks = scale.records[0], scale.record.ranks
    computing, parameters = record.modelled_compute_seconds, record.parameters
    link = network.common_link(ranks) if network and not record.network else None
    if link is None or ranks == 1 or not computing or not parameters:
        return None
    return float(2 * (ranks - 1) / ranks * FLOAT_BYTES * parameters * link.beta / (BACKWARD * computing))


def _prediction_error(row: Row) -> str:
    predicted, measured = row.scale.median(Record.predicted_seconds), row.scale.median(Record.step_seconds)
    return f"{100 * (predicted / measured - 1):+.1f} %" if predicted and measured else NONE


def _compared(row: Row, quantity: Quantity[Any]) -> float | None:
    return row.scale.median(quantity) if row.is_compared else None


def _efficiency_bounds(row: Row) -> str:
    if not row.is_compared:
        return NONE
    return "base" if row.scale.is_base else interval(*row.scale.bounds(Record.efficiency))


def _step_bounds(row: Row) -> str:
    """Return the interval; of pooled methods the range of their medians."""
    if row.members:
        steps = row.scale.values(Record.step_seconds)
        return interval(min(steps, default=None), max(steps, default=None), seconds)
    return interval(*row.scale.bounds(Record.step_seconds), seconds)


def _exposed(row: Row) -> str:
    """Return exposed communication; 0 by definition without communication."""
    exposed = row.scale.median(Record.exposed_communication_seconds)
    return NOISE if exposed == 0 and not _is_alone(row) else seconds(exposed)


def _exposed_bounds(row: Row) -> str:
    return NONE if _is_alone(row) else interval(*row.scale.bounds(Record.exposed_communication_seconds), seconds)


def _is_alone(row: Row) -> bool:
    return row.no_communication or row.scale.record.ranks == 1


def _base(row: Row) -> str:
    ranks, step = row.scale.record.base_ranks, row.scale.median(Record.base_step_seconds)
    return f"{plural(ranks, 'rank')}, step {seconds(step)}" if row.is_compared and ranks else NONE


def verdict(scale: Scale) -> str:
    """Return whether a case is near-linear: yes, no, disturbed, or inconclusive with the reason."""
    if scale.disturbed:
        return "disturbed"
    if scale.near_linear is not None:
        return "yes" if scale.near_linear else "no"
    low, high = scale.bounds(Record.efficiency)
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
        compared = [method for method in methods if method.is_compared and not method.no_communication]
        compared = [method for method in compared if method.scales[-1].values(Record.efficiency)]
        name = findings.settings.name(methods[0].record)
        problems += [(name or str(methods[0].record.model), compared)] * bool(compared)
        soonest += _soonest(name, methods)
        further += least_exposed(name, methods)
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
    best = max(methods, key=lambda method: (_ranks_reached(method), _end(method)))  # the first of equal ones
    if best.near_linear:
        return _ranks_reached(best), _near_linear(name, methods, best)
    return 0, _not_near_linear(name, methods, best)


def _ranks_reached(method: Method) -> int:
    return method.near_linear[-1].record.ranks if method.near_linear else 0


def _near_linear(name: str, methods: Sequence[Method], best: Method) -> Verdict:
    near = best.near_linear[-1]
    ranks, bounds = near.record.ranks, interval(*near.bounds(Record.efficiency))
    at = [scale.near_linear for method in methods for scale in method.beyond if scale.record.ranks == ranks]
    undecided = f", {at.count(None)} undecided" if None in at else ""
    facts = {
        "efficiency": digits(near.median(Record.efficiency)) + (f", {bounds}" if bounds != NONE else ""),
        "ranks": ("up to " if len(best.near_linear) < len(best.beyond) else "at ") + plural(ranks, "rank"),
        "method": best.name,
        "others": f"; near-linear: {at.count(True)} of {len(at)} methods{undecided}" if len(at) > 1 else "",
    }
    return Verdict(topic="scaling", word="near-linear", case=name, facts=facts)


def _not_near_linear(name: str, methods: Sequence[Method], best: Method) -> Verdict:
    ends = [method.scales[-1] for method in methods]
    reasons = dict.fromkeys(verdict(end) for end in ends if end.near_linear is None)
    bounds = interval(*ends[0].bounds(Record.efficiency)) if len(ends) == 1 else NONE
    efficiency = f"efficiency {spread(map(_end, methods))}" + (f", {bounds}" if bounds != NONE else "")
    failed = sum(end.near_linear is False for end in ends) > len(ends) / 2
    known = [scale for method in methods for scale in method.scales if scale.values(Record.speedup)]
    fastest = max(known, key=lambda scale: scale.median(Record.speedup) or 0.0)
    least, last = best.beyond[0], best.beyond[-1].record.ranks
    below = failed and least.near_linear is False and least.record.ranks < last
    facts = {
        "speedup": f"{digits(fastest.median(Record.speedup))} on {fastest.record.ranks}",
        "ranks": plural(last, "rank") + (f", nor at {least.record.ranks}" if below else ""),
        "range": "; ".join([efficiency, *(() if failed else reasons)]),
    }
    return Verdict(topic="scaling", word="not near-linear" if failed else "inconclusive", case=name, facts=facts)


def _end(method: Method) -> float:
    return method.scales[-1].median(Record.efficiency) or 0.0


def _soonest(name: str, methods: Sequence[Method]) -> list[Verdict]:
    """Return on how many ranks the target is reached first, if ranks of one method differ.

    Welch's test of the logarithms of the seeds' times tells other numbers of ranks of that method from it.
    """
    known = [
        (time, method, scale)
        for method in methods
        if len(method.scales) > 1 and not method.no_communication and _reached(method.scales[0]) is not None
        for scale in method.scales
        if (time := _reached(scale)) is not None
    ]
    if all(scale is method.scales[0] for _, method, scale in known):
        return []
    _, method, best = min(known, key=lambda reached: reached[0])
    others = [scale for scale in method.scales if scale is not best and _reached(scale) is not None]
    times = [np.log(scale.values(Record.seconds_to_target)) for scale in (best, *others)]
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
        "speedup": digits(best.median(Record.speedup)),
        "seeds": plural(seeds, "seed"),
        "near": f"; not distinguished from {near}" if near else "",
    }
    told = "soonest" if seeds > 1 else "soonest of one seed"
    word = "soonest on the base" if best is base else told if apart[0] or seeds == 1 else "not distinguished"
    return [Verdict(topic="scaling", word=word, case=name, facts=facts)]


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
                Point(scale.record.ranks, statistics.median(times), min(times), max(times))
                for scale in reached
                for times in [scale.values(Record.seconds_to_target)]
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
            method.name + (" (no communication)" if method.no_communication else ""),
            points,
            "ceiling" if method.no_communication else "method",
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
        ranks, value = scale.record.ranks, scale.median(Record.efficiency)
        low, high = scale.bounds(Record.efficiency)
        if value:
            bounds = (None, None) if low is None or high is None else (low * ranks, high * ranks)
            points.append(Point(ranks, value * ranks, *bounds))
    return points


SECTION = Declaration(
    50,
    page,
    answer=answer,
    figures=(charts, times_to_target),
)
