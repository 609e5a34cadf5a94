"""Scaling: step time, efficiency and time to the target by ranks, and how far methods are near-linear."""

import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from hpcdl.analysis.run.record import Record
from hpcdl.analysis.run.scaling import NEAR_LINEAR
from hpcdl.fabric.network import Network
from hpcdl.nn.volumes import FLOAT_BYTES
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
from hpcdl.report.formats.document import Axis, Lines, Point, Section
from hpcdl.report.formats.tables import Column, Table, table
from hpcdl.report.run.declaration import RANKS, Answer, Declaration, curves, median, stated
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.grouping import Method, Row, Scale, rows
from hpcdl.report.run.names import in_words, legend
from hpcdl.report.sections.step_ratios import NOISE
from hpcdl.trace.quantity import Quantity

BACKWARD: Final = 2 / 3
"""Share of backward in computing: two of three products of equal size."""
ALONE: Final = " (no communication)"
"""End of the name of ranks that do not communicate."""
POOLED: Final = (
    "One rank does not communicate, so that all schemes run the same program there; these cases are pooled. Their "
    "median is shown and, instead of an interval, their range."
)


def page(findings: Findings) -> Section:
    """Return one table per problem."""
    network = findings.predicted.estimate.network if findings.predicted else None
    rate, order, tables = Record.images_per_second, "most ranks first, then most images/s", list[Table]()
    for methods in findings.problems:
        shown = sorted(rows(methods), key=lambda row: (-row.scale.record.ranks, -(row.scale.median(rate) or 0)))
        bases = {_base(row) for row in shown} - {NONE}
        missed = "not reached" if any(time_reached(row.scale) for row in shown) else NONE
        columns, notes = _columns(network, bases, missed), _notes(methods, shown, bases)
        tables.append(table(columns, shown, findings.settings.title(methods[0].record), notes, order=order))
    return Section("Scaling", tables=tables, per="setting")


def _columns(network: Network | None, bases: Collection[str], missed: str) -> list[Column[Row]]:
    """Return the columns; ``missed``: the cell of a method that did not reach its target."""
    return [
        Column("method", lambda row: row.name + ALONE * row.no_communication),
        RANKS,
        stated(Record.nodes, importance="detail"),
        Column("step", lambda row: seconds(row.step_seconds)),
        Column("95 %", _step_bounds),
        median(
            Record.images_per_second,
            note="Images/s: number of images / the time that they take, pauses between steps included. "
            "Step: median time of a step.",
        ),
        Column("speedup", lambda row: digits(_compared(row, Record.speedup)), importance="detail"),
        Column("efficiency", lambda row: digits(_compared(row, Record.efficiency)), importance="answer"),
        Column("efficiency 95 %", _efficiency_bounds, importance="answer"),
        *([Column("base", _base, importance="detail")] if len(bases) > 1 else []),
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
            "Input: share of the step that the rank with the longest wait for images waits for them.",
            importance="detail",
        ),
        Column("exposed", _exposed),
        Column("exposed 95 %", _exposed_bounds, importance="detail"),
        Column(
            "r",
            lambda row: digits(_exchange_by_backward(row.scale, network)),
            "r: time to send a ring's bytes, divided by the time of backward; the time to send is that of a "
            "network fitted to this run. Below 1 the exchange can overlap with backward completely.",
        ),
        median(Record.predicted_seconds),
        Column("error", _prediction_error),
        Column(
            "to target",
            lambda row: seconds(reach) if (reach := time_reached(row.scale)) else missed,
            "To target: time until an evaluation reached the target accuracy, median over seeds. If batches grow "
            "with the ranks, more ranks need fewer steps only as long as larger batches save steps.",
            importance="answer",
        ),
        Column(
            "near-linear",
            lambda row: NONE if row.no_communication or row.scale.is_base else verdict(row.scale),
            importance="answer",
        ),
        median(
            Record.joules_per_image,
            note="J/image: energy of all nodes in the whole case / images of all steps; idle devices count.",
            importance="detail",
        ),
        stated(
            Record.simulated_ranks,
            "Simulated ranks: ranks that were simulated; one rank represents all ranks that behave alike.",
            importance="detail",
        ),
    ]


def _notes(methods: Sequence[Method], shown: Sequence[Row], bases: Collection[str]) -> list[str]:
    records = [row.scale.record for row in shown]
    free = [record.system or record.strategy for record in records if not record.keeps_step]
    seeds = max(len(scale.records) for method in methods for scale in method.scales)
    doubtful = sorted({record.ranks for record in records if record.ceiling_disturbed})
    hidden = any(_exposed(row) == NOISE for row in shown)
    single = any(record.base_ranks == 1 for record in records)
    relative = "" if single else "; efficiency is relative to this base, not to one rank"
    base = "".join(f"Base {base}{relative}." for base in bases)
    if len(bases) > 1:
        base = "Base: ranks and step of the case to which speedup and efficiency are relative."
    notes = {
        POOLED: any(row.members for row in shown),
        f"Step of {listed([*dict.fromkeys(free)])}: mean time in which all ranks together process one global "
        "batch, because their ranks do not step together or their steps differ.": bool(free),
        base: bool(bases),
        f"Numbers are medians over up to {seeds} seeds; an interval reaches from the lowest to the highest bound "
        f"of all seeds.": seeds > 1,
        f"{NOISE}: the step takes no longer than without communication.": hidden,
        f"Exposed communication at {', '.join(map(str, doubtful))} ranks is doubtful: the case without "
        "communication was disturbed.": bool(doubtful),
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
    if row.scale.is_base or not row.is_compared:
        return "base" if row.is_compared else NONE
    return _interval(*row.scale.bounds(Record.efficiency), digits)


def _step_bounds(row: Row) -> str:
    """Return the interval; of pooled methods the range of their medians."""
    steps = row.scale.values(Record.step_seconds) if row.members else []
    return _interval(*((min(steps), max(steps)) if steps else row.scale.bounds(Record.step_seconds)), seconds)


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


def charts(findings: Findings) -> list[Lines]:
    """Return the speedup of several methods of a problem over ranks, then the efficiency of each problem's best.

    The best method is that of the answer. The most ranks come first.
    """
    made, bests, names = list[Lines](), dict[str, list[Point]](), findings.settings
    for methods in findings.problems:
        record, compared = methods[0].record, [method for method in methods if method.is_compared]
        words = legend([(method.name, method.record) for method in compared])
        lines = {
            name + ALONE * method.no_communication: _speedup_points(method)
            for name, method in zip(words, compared, strict=True)
        }
        if len(lines) > 1:
            title = ": ".join(filter(None, ("Speedup", names.name(record))))
            made += _speedup(title, lines, names.further(record))
        if known := [method for method in compared if not method.no_communication]:
            best = max(known, key=_rank)
            bests[names.name(record) or in_words(best.name, best.record)] = [
                Point(x, y / x, low and low / x, high and high / x) for x, y, low, high in _speedup_points(best)
            ]
    if len(bests) > 1 or not made:
        made += _efficiency_chart(bests)
    return sorted(made, key=lambda chart: -max(chart.x.ticks))


def _efficiency_chart(lines: Mapping[str, Sequence[Point]]) -> list[Lines]:
    note = f"Best method of each network. Bars are 95 % intervals. Near-linear: at least {NEAR_LINEAR:g}."
    axes = Axis("ranks", whole, 2), Axis("efficiency", digits)
    return curves("Efficiency", axes, lines, note, references={"near-linear": lambda _: NEAR_LINEAR})


def _speedup(title: str, lines: Mapping[str, Sequence[Point]], settings: str = "") -> list[Lines]:
    note = (
        f"{settings}Speedup relative to one rank: efficiency x ranks, so that a base of several ranks counts as "
        "linear. Bars are 95 % intervals. Ideal: the number of ranks."
    )
    axes, limits = (Axis("ranks", whole, 2), Axis("speedup", digits, 2)), [n for n in lines if n.endswith(ALONE)]
    return curves(title, axes, lines, note, limits=limits, references={"ideal": lambda ranks: ranks})


def _speedup_points(method: Method) -> list[Point]:
    """Return the points of a method, the first one at its base, whose efficiency is 1 by definition."""
    points = {base: Point(base, base) for scale in method.scales if (base := scale.record.base_ranks)}
    for scale in method.scales:
        ranks, value = scale.record.ranks, scale.median(Record.efficiency)
        low, high = scale.bounds(Record.efficiency)
        if value:
            bounds = (None, None) if low is None or high is None or low == high else (low * ranks, high * ranks)
            points[ranks] = Point(ranks, value * ranks, *bounds)
    return [*points.values()]


def time_reached(scale: Scale) -> float | None:
    """Return the median time to the target over seeds; None if a seed missed it."""
    times = scale.values(Record.seconds_to_target)
    return statistics.median(times) if len(times) == len(scale.records) else None


MAX_WORDS: Final = 30
"""Words of a headline, at most."""
CHANCE: Final = "may be chance"
INSIDE: Final = f"{NEAR_LINEAR:.2f} is inside the interval"
REASONS: Final = {
    "disturbed": "other load disturbed the measurement, an efficiency of {}",
    "one launch": "the efficiency, {}, is of one launch, which does not show how launches vary",
    "too few steps for an interval": "too few steps were measured for an interval of the efficiency, {}",
    INSIDE: f"the limit, {NEAR_LINEAR:.2f}, is inside the interval of the efficiency, {{}}",
    CHANCE: f"the efficiency, {{}}, may differ from {NEAR_LINEAR:.2f} by chance; more launches would decide",
}
"""Sentences on why it is not decided whether a case is near-linear, by the word of the table."""


def verdict(scale: Scale) -> str:
    """Return whether a case is near-linear: yes, no, disturbed, or not decided with the reason."""
    if scale.disturbed or scale.near_linear is not None:
        return "disturbed" if scale.disturbed else "yes" if scale.near_linear else "no"
    low, high = scale.bounds(Record.efficiency)
    if any(not record.network and 1 in {record.launches, record.base_launches} for record in scale.records):
        return "not decided: one launch"
    if low is None or high is None:
        return "not decided: too few steps for an interval"
    return f"not decided: {INSIDE if low < NEAR_LINEAR <= high else CHANCE}"


def answer(findings: Findings) -> Answer | None:
    """Return how far each problem is near-linear, and with which method."""
    overviews = list[Overview]()
    for methods in findings.problems:
        compared = [method for method in methods if method.is_compared and not method.no_communication]
        compared = [method for method in compared if method.scales[-1].values(Record.efficiency)]
        if compared:
            overviews.append(_overview(findings.settings.subject(methods[0].record), compared))
    if not overviews:
        return None
    overviews.sort(key=lambda overview: (-overview.reached, overview.end.disturbed, -overview.end.record.ranks))
    first, *others = (sentence(overview.line) for overview in overviews)
    headline = f"{first.removesuffix('.')}{_others(overviews)}."
    headline = headline if len(headline.split()) <= MAX_WORDS else first
    lines = [*others, *(line for overview in overviews for line in overview.ways)]
    basis = [record for overview in overviews for scale in overview.scales for record in scale.records]
    return Answer(headline, lines, basis, good=overviews[0].reached > 0)


class Overview(NamedTuple):
    """How far the best method of a problem is near-linear."""

    name: str
    scales: Sequence[Scale]
    """Scales of all methods that have an efficiency."""
    end: Scale
    """Largest scale of the best method."""
    line: str
    reached: int = 0
    """Ranks that it reaches near-linearly; 0: none."""
    fails: bool = False
    """True if most methods are not near-linear, so that none is."""
    ways: Sequence[str] = ()
    """Sentence on all methods on as many ranks; none if there is one."""


def _overview(name: str, methods: Sequence[Method]) -> Overview:
    best = max(methods, key=_rank)  # the first of equal ones
    scales = [scale for method in methods for scale in method.scales if scale.values(Record.efficiency)]
    if near := _near_scale(best):
        line, ranks = _near_linear(name, best, near), near.record.ranks
        return Overview(name, scales, best.scales[-1], line, ranks, ways=_ways(name, methods, near.record))
    line, fails = _not_near_linear(name, methods, best)
    return Overview(name, scales, best.scales[-1], line, fails=fails)


def _others(overviews: Sequence[Overview]) -> str:
    """Return the end of a sentence on the first problem if it alone is near-linear, and no other is undecided."""
    first, *others = overviews
    whole = first.reached == first.end.record.ranks
    if not (whole and others and all(other.fails for other in others)):
        return ""
    return f"; {listed([other.name for other in others])} {'does' if len(others) == 1 else 'do'} not"


def _near_scale(method: Method) -> Scale | None:
    """Return the largest scale up to which a method is near-linear, else the largest that is."""
    near = method.near_linear or [scale for scale in method.beyond if scale.near_linear]
    return near[-1] if near else None


def _rank(method: Method) -> tuple[int, float]:
    """Return the ranks that a method reaches near-linearly, and its efficiency on the most ranks."""
    near = _near_scale(method)
    return near.record.ranks if near else 0, method.scales[-1].median(Record.efficiency) or 0.0


def _ranks(record: Record) -> str:
    """Return the number of ranks in words: hosts, if each has one rank."""
    return plural(record.ranks, "host" if record.nodes == record.ranks else "rank")


def _efficiency(scale: Scale) -> str:
    value, (low, high) = scale.median(Record.efficiency), map(digits, scale.bounds(Record.efficiency))
    rounds_to_limit = value is not None and value < NEAR_LINEAR <= float(digits(value))
    return digits(value, 4 if rounds_to_limit else 3) + (f" ({low} to {high})" if low != high else "")


def _near_linear(name: str, best: Method, near: Scale) -> str:
    last, beyond = best.beyond[-1], ""
    if near is not last:
        failed = f"on {last.record.ranks} the efficiency is {digits(last.median(Record.efficiency))}"
        beyond = f"; {failed if last.near_linear is False else f'{_ranks(last.record)} are undecided'}"
    ranks = ("on " if near is last or near not in best.near_linear else "up to ") + _ranks(near.record)
    method = in_words(best.name, best.record)
    return f"{name} stays near-linear {ranks} with {method}: efficiency {_efficiency(near)}{beyond}"


def _ways(name: str, methods: Sequence[Method], record: Record) -> list[str]:
    """Return a sentence on which of several methods are near-linear on as many ranks as ``record``."""
    alike = [(m, scale) for m in methods for scale in m.beyond if scale.record.ranks == record.ranks]
    near = [in_words(method.name, method.record) for method, scale in alike if scale.near_linear]
    count = f"On {_ranks(record)} {len(near)} of {len(alike)} methods are near-linear"
    return [f"{count} for {name}: {listed(near)}."] if len(alike) > 1 else []


def _not_near_linear(name: str, methods: Sequence[Method], best: Method) -> tuple[str, bool]:
    """Return a sentence, and True if it is decided that the method is not near-linear."""
    ends = [method.scales[-1] for method in methods]
    if sum(end.near_linear is False for end in ends) <= len(ends) / 2:
        end = next(end for end in ends if end.near_linear is None)
        reason = REASONS[verdict(end).removeprefix("not decided: ")].format(_efficiency(end))
        return f"No verdict on near-linear scaling of {name} at {_ranks(end.record)}: {reason}", False
    known = [scale for method in methods for scale in method.scales if scale.values(Record.speedup)]
    fastest, least = max(known, key=lambda scale: scale.median(Record.speedup) or 0.0), best.beyond[0]
    slower = fastest.record.ranks < max(end.record.ranks for end in ends)
    below = least.near_linear is False and least.record.ranks < best.beyond[-1].record.ranks
    most = _ranks(best.scales[-1].record)
    place = f" on {most}" if below and not slower else ""
    text = f"{name} is not near-linear on {_ranks(least.record) if place else most}"
    value = f"{_efficiency(best.scales[-1])}{place}"
    text += f": its best method has an efficiency of {value}" if len(ends) > 1 else f": efficiency {value}"
    speedup = f"; the largest speedup is {digits(fastest.median(Record.speedup))}, on {fastest.record.ranks}"
    return text + speedup * slower, True


SECTION = Declaration(50, page, answer=answer, figures=(charts,))
