"""Ratios of times: batches, split layers, overlap, sharded training, and costs of the fabric and of tracing."""

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import numpy as np

from hpcdl import registry
from hpcdl.analysis.run.record import ANY, Key, Record, group_by_key
from hpcdl.analysis.statistics.estimates import (
    NOTHING,
    Interval,
    Vector,
    launches_interval,
    median_interval,
    ratio_interval,
)
from hpcdl.registry import parts
from hpcdl.report.formats.cells import (
    CHANCE,
    NONE,
    bounded,
    digits,
    interval,
    listed,
    longer,
    percent,
    plural,
    rate,
    seconds,
    sentence,
    signed,
    volume,
)
from hpcdl.report.formats.document import Axis, Intervals, Section
from hpcdl.report.formats.tables import Column
from hpcdl.report.run.columns import METHOD, RANKS, median
from hpcdl.report.run.declaration import Answer, Declaration, one_table, per_setting
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.grouping import Method, Row, Scale, rows, time_ratio
from hpcdl.report.run.literature import in_words, network_name, title_of
from hpcdl.report.run.method_names import Names, scheme_name
from hpcdl.trace.quantity import Quantity
from hpcdl.training.parts.traits import Strategy

LAYERS: Final = "splitting the layers"


def _trained(findings: Findings, name: str) -> list[Record]:
    """Return the cases of training with times if the suite asks for the answer ``name``."""
    asked = name in findings.answered_by
    return [record for record in findings.records if asked and record.is_training and record.launch_seconds]


def _network(record: Record) -> str:
    return network_name(parts(str(record.model))[0])


def batch_answer(findings: Findings) -> Answer | None:
    """Return how many times as long as the smallest batch the largest one takes, per network on one rank."""
    fair = [one for one in _trained(findings, "batch_times") if one.ranks == 1 and not one.disturbed]
    fair.sort(key=lambda record: (record.model or "", record.global_batch or 0))
    alike = group_by_key((record.model, record) for record in fair)
    ends = [(records[0], records[-1]) for records in alike.values() if len(records) > 1]
    ratios = [(time_ratio([last], [first]), first, last) for first, last in ends]
    ratios.sort(key=lambda one: -one[0].value)
    if not ratios:
        return None
    (size, first, last), *others = ratios
    largest, least = last.global_batch or 1, first.global_batch or 1
    base = "one image" if least == 1 else f"a batch of {least}"
    text = f"a batch of {largest} takes {bounded(*size)} times as long as {base} for {_network(first)}"
    text += "".join(f", {digits(ratio.value)} for {_network(one)}" for ratio, one, _ in others[-1:])
    details = [
        f"For {_network(one)} the largest batch takes {bounded(*ratio)} times as long as the smallest."
        for ratio, one, _ in others[:-1]
    ]
    basis = [record for _, *sides in ratios for record in sides]
    return Answer(sentence(f"{text}, not {largest / least:g} times"), details, basis)


def split_answer(findings: Findings) -> Answer | None:
    """Return how many times as fast as split batches split layers are, per network on the most ranks."""
    known = [record for record in _trained(findings, "splits") if record.ranks > 1]
    pairs = list[tuple[Record, Record]]()
    for record in (record for record in known if record.parallelism):
        alike = [other for other in known if other.problem() == record.problem()]
        if record.ranks == max(other.ranks for other in alike):
            pairs += [(record, one) for one in alike if not one.parallelism and one.ranks == record.ranks]
    fair = [(time_ratio([pair[1]], [pair[0]]), *pair) for pair in pairs if not any(r.disturbed for r in pair)]
    fair.sort(key=lambda one: (_split(one[1]) != LAYERS, -one[0].value))
    where, words = findings.settings.where, "times as fast as splitting the batch"
    lines = [
        sentence(f"{_in_one_launch(record)}{_split(record)} is {bounded(*size)} {words} {where(record)}")
        for size, record, _ in fair
    ]
    if left_out := dict.fromkeys(_network(pair[0]) for pair in pairs if any(r.disturbed for r in pair)):
        lines.append(f"Not decided for {listed(list(left_out))}: other load disturbed the measurement.")
    return Answer(lines[0], lines[1:], [record for _, *sides in fair for record in sides]) if lines else None


def _in_one_launch(record: Record) -> str:
    return "in one launch " if record.launches == 1 and not record.network else ""


def _split(record: Record) -> str:
    kind = parts(str(record.parallelism))[0]
    return LAYERS if kind == "model" else f"a {kind} split"


BATCH_TIMES: Final = Declaration(
    47, lambda _: Section("Batches"), answer=batch_answer, name="batch_times", table="scaling"
)
SPLITS: Final = Declaration(48, lambda _: Section("Splits"), answer=split_answer, name="splits", table="scaling")

STRATEGIES: Final = ("synchronous", "layerwise")
"""Strategies that send the same sums; they differ in when."""
ONE_SUM: Final = ("synchronous", {"bucket_bytes": "0"})
"""Name and settings of the one that sends all gradients after backward."""
BUCKETS: Final = {"synchronous": "sums in buckets"}
"""Name of the one with the usual buckets."""
NOISE: Final = "~0"
"""Exposed communication that does not differ from 0."""
Timed = tuple[str, Scale, Interval, Interval]
"""A strategy in words, the share that it saves of the first one's step, and the share that overlaps."""


def _by_scheme(methods: Sequence[Method]) -> list[list[Timed]]:
    """Return the strategies of each scheme and number of ranks, if there are several; the suite's first first."""
    groups: dict[Key, list[Scale]] = {}
    for row in rows(methods):
        record = row.scale.record
        if record.strategy in STRATEGIES and record.ranks > 1 and not row.no_communication and row.step_seconds:
            key = (record.ranks, record.but(training="").configuration("training"))
            groups.setdefault(key, []).append(row.scale)
    return [_timed(scales) for scales in groups.values() if len(scales) > 1]


def _timed(scales: Sequence[Scale]) -> list[Timed]:
    names = Names(record for scale in scales for record in scale.records)
    whole = next((scale for scale in scales if parts(str(scale.record.training)) == ONE_SUM), None)
    return [
        (
            BUCKETS.get(str(scale.record.training)) or in_words(names(scale.record), scale.record),
            scale,
            _less(scale, scales[0], Record.step_seconds),
            _less(scale, whole, Record.exposed_communication_seconds),
        )
        for scale in scales
    ]


def _less(scale: Scale, base: Scale | None, quantity: Quantity[Any]) -> Interval:
    """Return 1 less the ratio of a time to the base's, within the bounds of both; NaN if unknown."""
    if base is None or scale is base:
        return NOTHING
    (value, low, high), (whole, least, most) = (
        (math.nan if number is None else number for number in (side.median(quantity), *side.bounds(quantity)))
        for side in (scale, base)
    )
    if not whole > 0:
        return NOTHING
    return Interval(1 - value / whole, 1 - high / (least or math.nan), 1 - low / (most or math.nan))


def overlap_answer(findings: Findings) -> Answer | None:
    """Return what each strategy saves of the first one's step, and the share that it overlaps, if known."""
    groups = [group for methods in findings.problems for group in _by_scheme(methods)]
    lines = list[str]()
    for about in (_overlapped, _saved):
        for group in groups:
            record = group[0][1].record
            where = findings.settings.where(record, title_of(scheme_name(record)).removeprefix("a "))
            lines += [sentence(f"{text} {where}") for text in about(group)]
    basis = [record for group in groups for _, scale, *_ in group for record in scale.records]
    return Answer(lines[0], lines[1:], basis) if lines else None


def _overlapped(group: Sequence[Timed]) -> list[str]:
    shares = _shares("overlaps", [(name, share) for name, _, _, share in group if math.isfinite(share.value)])
    return [f"{shares} of the communication with computing"] if shares else []


def _saved(group: Sequence[Timed]) -> list[str]:
    """Return what strategies save of the first one's step or add to it, and which of them noise hides."""
    first = group[0][0]
    known = [(name, share) for name, _, share, _ in group[1:] if math.isfinite(share.value)]
    hidden = [(name, share) for name, share in known if share.low <= 0 <= share.high]
    told = [one for one in known if one not in hidden]
    saves = _shares("saves", [one for one in told if one[1].value > 0])
    lines = [f"{saves} of a step with {first}"] * bool(saves)
    for name, share in ((name, share) for name, share in told if share.value <= 0):
        time = longer(*(1 - bound for bound in (share.value, share.high, share.low)))
        lines.append(f"a step with {name} takes {time} {'as' if time.startswith('as') else 'than'} with {first}")
    if any(scale.disturbed for _, scale, *_ in group):
        lines = [f"not decided, as other load disturbed the measurement: {line}" for line in lines]
    if unknown := listed([name for name, _ in hidden]):
        lines.append(f"not decided whether time is saved by {unknown} against {first}: {CHANCE}")
    return lines


def _shares(verb: str, shares: Sequence[tuple[str, Interval]]) -> str:
    """Return the share of each strategy, the largest first, with its interval; empty if there are none."""
    if not shares:
        return ""
    (name, size), *others = sorted(shares, key=lambda one: -one[1].value)
    rest = (f"{name} {percent(max(0.0, share.value))}" for name, share in others)
    return listed([f"{name} {verb} {bounded(*size, percent)}", *rest])


OVERLAP: Final = Declaration(
    82, lambda _: Section("Overlap"), answer=overlap_answer, name="overlap", table="scaling"
)

NOTE: Final = (
    "Beyond computing: step minus a rank's compute time. Sent per rank: by the rank that sends most in a step; "
    "messages that overlap with the next step count in that step, so that busy cores raise the number. Sent per "
    "host: to other hosts, if simulated without a topology. Memory: parameters, gradients and optimizer state, "
    "measured. Rate for 90 %: link rate at which computing takes 90 % of a step, if all messages overlap with "
    "computing, and if none do."
)


def _sharding(methods: Sequence[Method]) -> list[Row]:
    """Return the rows of a problem that shards, on several ranks, the most ranks first."""
    several = [row for row in rows(methods) if row.scale.record.ranks > 1 and not row.no_communication]
    several.sort(key=lambda row: -row.scale.record.ranks)
    return several if any(map(_shards, several)) else []


def _shards(row: Row) -> bool:
    with suppress(ValueError):  # a strategy of another program
        return registry.traits("training", row.scale.record.strategy, Strategy).shards_state
    return False


def _beyond_computing(row: Row) -> str:
    computing = row.scale.median(Record.compute_seconds)
    return seconds(max(0.0, (row.step_seconds or 0.0) - computing) if computing else None)


def _needed_rate(row: Row) -> str:
    sent, computing = (row.scale.median(one) for one in (Record.bytes_sent_per_rank, Record.compute_seconds))
    return interval(0.9 * (sent or 0) / computing, 9 * (sent or 0) / computing, rate) if computing else NONE


COLUMNS: Final = (
    METHOD,
    RANKS,
    Column[Row]("step", lambda row: seconds(row.step_seconds or 0.0), importance="answer"),
    Column("beyond computing", _beyond_computing),
    median(Record.bytes_sent_per_rank, "sent per rank", importance="answer"),
    median(Record.bytes_sent_per_host),
    median(Record.memory_bytes_per_rank, importance="answer"),
    Column("rate for 90 %", _needed_rate),
)


def sharding_answer(findings: Findings) -> Answer | None:
    """Return bytes, memory and step of undisturbed sharded methods / synchronous training, on most ranks."""
    lines, basis = list[str](), list[Record]()
    for methods in findings.problems:
        ranks = methods[0].scales[-1].record.ranks
        most = [row for row in _sharding(methods) if row.scale.record.ranks == ranks and not row.scale.disturbed]
        sharded = [row for row in most if _shards(row)]
        schemes = {scheme_name(row.scale.record) for row in sharded}
        base = next((row.scale for row in most if row.scale.record.strategy == "synchronous"), None)
        if base is None:
            continue
        for row in sharded:
            record = row.scale.record
            scheme = title_of(scheme_name(record)).removeprefix("a ") if len(schemes) > 1 else ""
            text = f"{record.system or in_words(row.name, record)} {_against(row.scale, base)}"
            where = findings.settings.where(record, scheme)
            lines.append(f"Compared with synchronous training {text} {where}.")
        basis += [record for scale in (base, *(row.scale for row in sharded)) for record in scale.records]
    return Answer(lines[0], lines[1:], basis) if lines else None


def _against(scale: Scale, base: Scale) -> str:
    """Return bytes, memory and step relative to those of ``base``, in words."""
    sent, memory = (
        (scale.median(quantity) or 0.0) / (base.median(quantity) or math.inf)
        for quantity in (Record.bytes_sent_per_rank, Record.memory_bytes_per_rank)
    )
    sends = "sends as many bytes" if round(sent, 2) == 1 else f"sends {digits(sent)} times the bytes"
    words = [sends] * bool(sent) + [f"needs {100 * memory:.0f} % of the memory"] * bool(memory)
    ratio = time_ratio(scale.records, base.records)
    time = longer(*ratio)
    if ratio.low <= 1 <= ratio.high and ratio.low < ratio.high:
        time = f"as long ({signed(ratio.low)} to {signed(ratio.high)}: {CHANCE})"
    return listed([*words, f"takes {time}"])


SHARDING: Final = Declaration(
    88,
    lambda findings: per_setting(findings, "Sharding", COLUMNS, _sharding, NOTE, "most ranks first"),
    answer=sharding_answer,
    name="sharding",
)

Sides = tuple[list[Vector], list[Vector]]
"""Times of the launches of a program without, and with the fabric or tracing."""


class Cost(NamedTuple):
    """One program measured_costs both ways; seconds of a step, or of one operation, each of the slowest rank."""

    of: str
    record: Record
    without: Interval
    having: Interval
    ratio: Interval
    """``having`` / ``without``."""

    @property
    def is_noise(self) -> bool:
        """True if the ratio is not above 1, or its interval holds 1."""
        return self.ratio.value <= 1 or self.ratio.low <= 1


def measured_costs(findings: Findings) -> list[Cost]:
    """Return exchanges through the fabric against mpi4py's own, by size, then trainings that traced even steps.

    Tracing costs less than the drift of a machine from one case to the next, so the even steps of a launch are
    compared with its odd ones; the intervals are over launches. Seeds are launches.
    """
    groups: dict[object, tuple[str, Record, Sides]] = {}
    for launch in findings.launches:
        record = launch.record
        if record.kind == "pairwise" and record.aggregation in {"raw", "fabric"} and len(launch.seconds):
            *_, sides = groups.setdefault((record.problem(), record.ranks), ("fabric", record, ([], [])))
            sides[record.aggregation == "fabric"].append(launch.seconds)
        if record.settings.get("trace") == "alternating" and len(launch.seconds) > 1:
            key = (record.problem(), record.method, record.ranks)
            *_, sides = groups.setdefault(key, ("tracing", record, ([], [])))
            for offset in (0, 1):
                sides[(record.warmup_steps + offset) % 2 == 0].append(launch.seconds[offset::2])
    exchanges, traced = list[Cost](), list[Cost]()
    for of, record, sides in (group for group in groups.values() if all(group[-1])):
        medians, is_traced = [np.array([np.median(launch) for launch in side]) for side in sides], of == "tracing"
        ratio = median_interval(medians[1] / medians[0]) if is_traced else ratio_interval(*reversed(sides))
        without, having = map(launches_interval, sides)
        (traced if is_traced else exchanges).append(Cost(of, record, without, having, ratio))
    exchanges.sort(key=lambda cost: cost.record.message_bytes or 0)
    return [*exchanges, *sorted(traced, key=lambda cost: cost.ratio.value)]


COST_NOTE: Final = (
    "Fabric: an exchange with mpi4py's Sendrecv, and the same exchange as hpcdl's algorithms do it, up to 64 KiB "
    "with persistent requests; the remaining difference is the cost of programs in Python. Tracing: in one "
    "training odd steps record only their time, and even steps every message and computation. On one rank all "
    "schemes run the same program and are pooled."
)


def _name(record: Record) -> str:
    if record.kind == "pairwise":
        return volume(record.message_bytes)
    name = scheme_name(record.but(aggregation=ANY) if record.ranks == 1 else record)
    if record.kind == "train":
        return name
    return f"{record.collective} {name} {volume(record.message_bytes)}"


def _difference(cost: Cost) -> str:
    return "within noise" if cost.is_noise else seconds(cost.having.value - cost.without.value)


COST_COLUMNS: Final = (
    Column[Cost]("of", lambda cost: cost.of),
    Column[Cost]("case", lambda cost: _name(cost.record)),
    Column[Cost]("ranks", lambda cost: str(cost.record.ranks)),
    Column[Cost]("without", lambda cost: seconds(cost.without.value)),
    Column[Cost]("with", lambda cost: seconds(cost.having.value)),
    Column[Cost]("difference", _difference),
    Column[Cost]("with / without", lambda cost: digits(cost.ratio.value), importance="answer"),
    Column[Cost]("95 %", lambda cost: interval(*cost.ratio[1:]), importance="answer"),
)


def costs_page(findings: Findings) -> Section:
    """Return one row per exchange, and per training that traced every second step."""
    return one_table(
        "Cost of the fabric and of tracing", COST_COLUMNS, measured_costs(findings), COST_NOTE, left=2
    )


def costs_answer(findings: Findings) -> Answer | None:
    """Return the largest cost of an exchange and of tracing, and the time of the largest simulation."""
    costs = measured_costs(findings)
    exchanges, traced = ([cost for cost in costs if cost.of == of] for of in ("fabric", "tracing"))
    told, details = [], list[str]()
    if exchanges:
        worst = max(exchanges, key=lambda cost: cost.ratio.value)
        most = "at most " if len(exchanges) > 1 else ""
        size = "no measurably longer time" if worst.is_noise else f"{most}{longer(*worst.ratio)}"
        told.append(f"an exchange through hpcdl takes {size} than with mpi4py alone")
    if traced:
        worst = max(traced, key=lambda cost: cost.ratio.value)
        bound = max(cost.ratio.high for cost in traced)
        most = f"at most {percent(bound - 1)} longer" if math.isfinite(bound) else "no measurably longer time"
        told.append(f"tracing makes a step take {most if worst.is_noise else longer(*worst.ratio)}")
    if not told:
        return None
    if simulated := [record for record in findings.records if record.simulation_seconds]:
        slow = max(simulated, key=lambda record: record.simulation_seconds or 0)
        what = f"{slow.collective or slow.training} on {slow.ranks} ranks"
        details.append(f"The longest simulation, {what}, takes {seconds(slow.simulation_seconds)} to run.")
    basis = [record for record in findings.records if not record.network]
    return Answer(sentence(", and ".join(told)), details, basis)


def cost_charts(findings: Findings) -> list[Intervals]:
    """Return the ratio of each program with and without the fabric or tracing."""
    costs = measured_costs(findings)
    labels = [f"{cost.of}: {_name(cost.record)}, {plural(cost.record.ranks, 'rank')}" for cost in costs]
    ratios = [cost.ratio for cost in costs]
    note = "Bars are 95 % intervals; 1: no cost."
    chart = Intervals("Time with / without the fabric, tracing", labels, ratios, Axis("with / without"), 1.0, note)
    return [chart] if costs else []


COSTS: Final = Declaration(19, costs_page, answer=costs_answer, figures=(cost_charts,), name="costs")
