"""Scaling: step time and efficiency by the number of ranks, and which methods are near-linear."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from hpcdl.analysis.run.record import Record
from hpcdl.analysis.run.scaling import NEAR_LINEAR
from hpcdl.fabric.network import Network
from hpcdl.nn.layers.volumes import FLOAT_BYTES
from hpcdl.report.formats.cells import (
    NONE,
    Number,
    digits,
    interval,
    listed,
    percent,
    plural,
    seconds,
    sentence,
    whole,
)
from hpcdl.report.formats.document import Axis, Column, Lines, Point, Section, Table, table
from hpcdl.report.formats.verdicts import Verdict
from hpcdl.report.run.columns import RANKS, median, stated
from hpcdl.report.run.curves import curves
from hpcdl.report.run.declaration import Answer, Declaration
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.grouping import Method, Row, Scale, Settings, rows
from hpcdl.report.run.literature import in_words
from hpcdl.report.sections.collectives import one_launch
from hpcdl.report.sections.overlap import NOISE
from hpcdl.report.sections.time_to_target import reached as time_reached
from hpcdl.trace.quantity import Quantity

BACKWARD: Final = 2 / 3
"""Share of backward in computing: two of three products of equal size."""
BASE: Final = "Base: ranks and step of the case that speedup and efficiency are relative to."
MAX_WORDS: Final = 30
"""Words of a headline, at most."""
ONE_LAUNCH: Final = "one launch"
FEW_STEPS: Final = "too few steps for an interval"
INSIDE: Final = f"{NEAR_LINEAR:.2f} is inside the interval"
CHANCE: Final = "may be chance"
REASONS: Final = {
    "disturbed": "other load disturbed the measurement (efficiency {})",
    ONE_LAUNCH: "the efficiency, {}, is of one launch, which does not show how launches vary",
    FEW_STEPS: "too few steps were measured for an interval of the efficiency, {}",
    INSIDE: f"the limit, {NEAR_LINEAR:.2f}, is inside the interval of the efficiency, {{}}",
    CHANCE: f"the efficiency, {{}}, may differ from {NEAR_LINEAR:.2f} by chance; more launches decide it",
}
"""Sentences on why it is not decided whether a case is near-linear, by the word of the table."""
POOLED: Final = (
    "1 rank exchanges nothing: cases that differ in their scheme alone are one program. Their median is shown "
    "and, instead of an interval, their range."
)


def page(findings: Findings) -> Section:
    """Return one table per problem."""
    network = findings.predicted.estimate.network if findings.predicted else None
    tables = [_table(methods, findings.settings, network) for methods in findings.problems]
    return Section("Scaling", tables=tables, per="setting")


def _table(methods: Sequence[Method], settings: Settings, network: Network | None) -> Table:
    shown = sorted(
        rows(methods),
        key=lambda row: (-row.scale.record.ranks, -(row.scale.median(Record.images_per_second) or 0)),
    )
    bases = {_base(row) for row in shown} - {NONE}
    return table(
        _columns(network, several_bases=len(bases) > 1, reached=any(time_reached(row.scale) for row in shown)),
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
        replace(RANKS, importance="answer"),
        stated(Record.nodes, importance="detail"),
        Column("step", lambda row: seconds(row.step_seconds)),
        Column("95 %", _step_bounds),
        median(
            Record.images_per_second,
            note="Images/s: all measured images / their time, pauses included. Steps are medians.",
        ),
        Column("speedup", lambda row: digits(_compared(row, Record.speedup)), importance="detail"),
        Column("efficiency", lambda row: digits(_compared(row, Record.efficiency)), importance="answer"),
        Column("efficiency 95 %", _efficiency_bounds, importance="answer"),
        Column("base", lambda row: _base(row) if several_bases else NONE, importance="detail"),
        median(
            Record.load_balance,
            note="Load balance: mean compute time over ranks / compute time of the slowest rank. Communication: "
            "compute time of the slowest rank / step. Their product: share of the step in which ranks compute.",
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
            "r: time of a ring's bytes on the network fitted to this run / time of backward. Below 1 backward can "
            "hide the exchange.",
        ),
        median(Record.predicted_seconds),
        Column("error", _prediction_error),
        Column(
            "to target",
            lambda row: seconds(reach) if (reach := time_reached(row.scale)) else missed,
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
            "Simulated ranks: representatives of all ranks by symmetry; without symmetry all.",
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


def _exchange_by_backward(scale: Scale, network: Network | None) -> float | None:
    """Return the time of a ring's bytes on a fitted network / the time of backward, for a replay."""
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
    return "base" if row.scale.is_base else _interval(*row.scale.bounds(Record.efficiency), digits)


def _step_bounds(row: Row) -> str:
    """Return the interval; of pooled methods the range of their medians."""
    if row.members:
        steps = row.scale.values(Record.step_seconds)
        return _interval(min(steps, default=None), max(steps, default=None), seconds)
    return _interval(*row.scale.bounds(Record.step_seconds), seconds)


def _interval(low: Number, high: Number, shown: Callable[[Number], str]) -> str:
    """Return the bounds; a dash if their width is 0, as of simulated times."""
    return NONE if low == high else interval(low, high, shown)


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
    """Return whether a case is near-linear: yes, no, disturbed, or not decided with the reason."""
    if scale.disturbed:
        return "disturbed"
    if scale.near_linear is not None:
        return "yes" if scale.near_linear else "no"
    low, high = scale.bounds(Record.efficiency)
    if scale.is_one_launch:
        reason = ONE_LAUNCH
    elif low is None or high is None:
        reason = FEW_STEPS
    else:
        reason = INSIDE if low < NEAR_LINEAR <= high else CHANCE
    return f"not decided: {reason}"


def answer(findings: Findings) -> Answer | None:
    """Return how far each problem is near-linear, and with which method."""
    overviews = list[Overview]()
    for methods in findings.problems:
        compared = [method for method in methods if method.is_compared and not method.no_communication]
        compared = [method for method in compared if method.scales[-1].values(Record.efficiency)]
        name = findings.settings.subject(methods[0].record)
        if compared:
            overviews.append(_overview(name, compared))
    overviews.sort(key=lambda overview: (-overview.reached, overview.end.disturbed, -overview.end.record.ranks))
    lines = [sentence(overview.verdict.sentence) for overview in overviews]
    lines += [overview.methods.sentence for overview in overviews if overview.methods]
    if not lines:
        return None
    headline = f"{lines[0].removesuffix('.')}{_others(overviews)}."
    if len(headline.split()) > MAX_WORDS:
        headline = lines[0]
    basis = [record for overview in overviews for scale in overview.scales for record in scale.records]
    return Answer(headline, lines[1:], basis, good=overviews[0].verdict.row.good)


class Overview(NamedTuple):
    """Verdict on the best method of a problem."""

    reached: int
    """Ranks that it reaches near-linearly; 0: none."""
    end: Scale
    """Largest scale of that method."""
    verdict: Verdict
    methods: Verdict | None
    """Verdict on all methods on as many ranks; None if there is one."""
    scales: Sequence[Scale]
    """Scales of all methods that have an efficiency."""


def _overview(name: str, methods: Sequence[Method]) -> Overview:
    best = max(methods, key=lambda method: (_ranks_reached(method), _end(method)))  # the first of equal ones
    scales = [scale for method in methods for scale in method.scales if scale.values(Record.efficiency)]
    if near := _near_scale(best):
        verdict, ways = _near_linear(name, best, near), _methods(name, methods, near.record)
    else:
        verdict, ways = _not_near_linear(name, methods, best), None
    return Overview(_ranks_reached(best), best.scales[-1], verdict, ways, scales)


def _others(overviews: Sequence[Overview]) -> str:
    """Return the end of a sentence on the first problem if it alone is near-linear, and no other is undecided."""
    first, *others = overviews
    whole = first.reached == first.end.record.ranks
    if not (whole and others and all(other.verdict.word == "not near-linear" for other in others)):
        return ""
    return f"; {listed([other.verdict.case for other in others])} {'does' if len(others) == 1 else 'do'} not"


def _near_scale(method: Method) -> Scale | None:
    """Return the largest scale up to which a method is near-linear, else the largest that is."""
    near = method.near_linear or [scale for scale in method.beyond if scale.near_linear]
    return near[-1] if near else None


def _ranks_reached(method: Method) -> int:
    near = _near_scale(method)
    return near.record.ranks if near else 0


def _ranks(record: Record) -> str:
    """Return the number of ranks in words: hosts, if each has one rank."""
    return plural(record.ranks, "host" if record.nodes == record.ranks else "rank")


def _efficiency(scale: Scale) -> str:
    low, high = map(digits, scale.bounds(Record.efficiency))
    return digits(scale.median(Record.efficiency)) + (f" ({low} to {high})" if low != high else "")


def _near_linear(name: str, best: Method, near: Scale) -> Verdict:
    last, beyond = best.beyond[-1], ""
    if near is not last:
        failed = f"on {last.record.ranks} it is {digits(last.median(Record.efficiency))}"
        beyond = f"; {failed if last.near_linear is False else f'it is not decided for {last.record.ranks}'}"
    facts = {
        "efficiency": _efficiency(near),
        "ranks": ("on " if near is last or near not in best.near_linear else "up to ") + _ranks(near.record),
        "method": in_words(best.name, best.record),
        "beyond": beyond,
    }
    return Verdict(topic="scaling", word="near-linear", case=name, facts=facts)


def _methods(name: str, methods: Sequence[Method], record: Record) -> Verdict | None:
    """Return which of several methods are near-linear on as many ranks as ``record``."""
    at = {
        in_words(method.name, method.record): scale.near_linear
        for method in methods
        for scale in method.beyond
        if scale.record.ranks == record.ranks
    }
    if len(at) < 2:
        return None
    undecided = [*at.values()].count(None)
    facts = {
        "ranks": _ranks(record),
        "count": f"all {len(at)}" if all(at.values()) else f"{[*at.values()].count(True)} of {len(at)}",
        "names": listed([name for name, near in at.items() if near]),
        "undecided": f"; {undecided} not decided" if undecided else "",
    }
    return Verdict(topic="scaling", word="methods", case=name, facts=facts)


def _not_near_linear(name: str, methods: Sequence[Method], best: Method) -> Verdict:
    ends = [method.scales[-1] for method in methods]
    last = max(ends, key=lambda end: end.record.ranks)
    failed = sum(end.near_linear is False for end in ends) > len(ends) / 2
    if not failed:
        open_end = next(end for end in ends if end.near_linear is None)
        reason = REASONS[verdict(open_end).removeprefix("not decided: ")]
        facts = {"ranks": _ranks(open_end.record), "reason": reason.format(_efficiency(open_end))}
        return Verdict(topic="scaling", word="inconclusive", case=name, facts=facts)
    known = [scale for method in methods for scale in method.scales if scale.values(Record.speedup)]
    fastest, least = max(known, key=lambda scale: scale.median(Record.speedup) or 0.0), best.beyond[0]
    below = least.near_linear is False and least.record.ranks < best.beyond[-1].record.ranks
    slower = fastest.record.ranks < last.record.ranks
    speedup = f"{digits(fastest.median(Record.speedup))}, on {fastest.record.ranks}"
    facts = {
        "ranks": _ranks(best.scales[-1].record)
        + (f", nor on {least.record.ranks}" if below and not slower else ""),
        "efficiency": _efficiency(best.scales[-1]) + (" at best" if len(ends) > 1 else ""),
        "fastest": f"; the largest speedup is {speedup}" if slower else "",
    }
    return Verdict(topic="scaling", word="not near-linear", case=name, facts=facts)


def _end(method: Method) -> float:
    return method.scales[-1].median(Record.efficiency) or 0.0


def charts(findings: Findings) -> list[Lines]:
    """Return the speedup over ranks, the most ranks first; problems with one method each share a chart."""
    made, single, names = list[Lines](), dict[str, list[Point]](), findings.settings
    for methods in findings.problems:
        record, alone = methods[0].record, [f"{method.name}{ALONE}" for method in methods]
        lines = {
            f"{method.name}{ALONE if method.no_communication else ''}": _speedup_points(method)
            for method in methods
            if method.is_compared
        }
        if len(lines) > 1:
            title = ": ".join(filter(None, ("Speedup", names.name(record))))
            made += _speedup(title, lines, names.further(record), alone)
        else:
            single |= {names.name(record) or name: points for name, points in lines.items()}
    return sorted([*made, *_speedup("Speedup", single)], key=lambda chart: -max(chart.x.ticks))


ALONE: Final = " (no communication)"
"""End of the name of a line of ranks that do not communicate."""


def _speedup(
    title: str, lines: Mapping[str, Sequence[Point]], settings: str = "", limits: Collection[str] = ()
) -> list[Lines]:
    note = (
        f"{settings}Speedup relative to one rank: efficiency x ranks, so that a base of several ranks counts as "
        "linear. Bars are 95 % intervals. Ideal: the number of ranks."
    )
    axes = Axis("ranks", whole, 2), Axis("speedup", digits, 2)
    return curves(title, axes, lines, note, limits=limits, references={"ideal": lambda ranks: ranks})


def _speedup_points(method: Method) -> list[Point]:
    """Return the points of a method, the first one at its base, whose efficiency is 1 by definition."""
    points = {base: Point(base, base) for scale in method.scales if (base := scale.record.base_ranks)}
    for scale in method.scales:
        ranks, value = scale.record.ranks, scale.median(Record.efficiency)
        low, high = scale.bounds(Record.efficiency)
        if value:
            bounds = (None, None) if low is None or high is None else (low * ranks, high * ranks)
            points[ranks] = Point(ranks, value * ranks, *bounds)
    return [*points.values()]


SECTION = Declaration(
    50,
    page,
    answer=answer,
    figures=(charts,),
)
