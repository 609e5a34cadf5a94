"""Ratios of times: batches, split layers, overlap, sharded training, and costs of the fabric and of tracing."""

from collections.abc import Hashable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from hpcdl import registry
from hpcdl.analysis.run.launches import Launch, undisturbed
from hpcdl.analysis.run.record import ANY, Record, group_by_key, judge_methods
from hpcdl.analysis.statistics import judging
from hpcdl.registry import parts
from hpcdl.report.formats.cells import NONE, digits, interval, longer, plural, rate, seconds, sentence, volume
from hpcdl.report.formats.document import Axis, Bars, Intervals, Section
from hpcdl.report.formats.tables import Column
from hpcdl.report.run.declaration import METHOD, RANKS, Answer, Declaration, median, one_table, per_setting
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.grouping import Method, Row, rows
from hpcdl.report.run.names import Names, in_words, network_name, scheme_name, title_of, without_settings
from hpcdl.report.run.views import Side, View
from hpcdl.training.parts.traits import Strategy


def _trained(findings: Findings, name: str) -> list[Record]:
    """Return the cases of training with times if the suite asks for the answer ``name``."""
    asked = name in findings.answered_by
    return [record for record in findings.records if asked and record.is_training and record.step_seconds]


def _ends(findings: Findings) -> list[Record]:
    """Return the smallest and the largest batch of each network on one rank."""
    single = [record for record in _trained(findings, "batch_times") if record.ranks == 1 and record.global_batch]
    single.sort(key=lambda record: record.step_seconds or 0.0)
    alike = [*group_by_key((record.model, record) for record in single).values()]
    alike.sort(key=lambda some: (some[0].step_seconds or 0.0) / (some[-1].step_seconds or 1.0))
    sizes = [[record.global_batch or 0 for record in records] for records in alike]
    pairs = zip(alike, sizes, strict=True)
    return [
        record for records, known in pairs for record in records if record.global_batch in {min(known), max(known)}
    ]


BATCHES: Final = View(
    "global_batch",
    _ends,
    [(Record.step_seconds, "long")],
    against=lambda side, sides: int(side.name) == min(int(other.name) for other in sides),
    subject=lambda _, side, __: f"a batch of {side.name}",
    where=lambda _, side: f"for {network_name(without_settings(str(side.record.model)))}",
)


def batch_answer(findings: Findings) -> Answer | None:
    """Return how many times as long as the smallest batch the largest one takes, per network on one rank."""
    return BATCHES.answer(findings)


BATCH_TIMES: Final = Declaration(
    47, lambda _: Section("Batches"), answer=batch_answer, name="batch_times", table="scaling"
)


def _on_most_ranks(findings: Findings) -> list[Record]:
    """Return the cases on the most ranks of each problem, if these are several."""
    known = [record for record in _trained(findings, "splits") if record.ranks > 1]
    most = {record.problem(): record.ranks for record in sorted(known, key=lambda record: record.ranks)}
    return [record for record in known if record.ranks == most[record.problem()]]


def _split(_: Findings, side: Side, __: Sequence[Side]) -> str:
    kind = parts(side.name)[0]
    return {"none": "splitting the batch", "model": "splitting the layers"}.get(kind, f"a {kind} split")


SPLIT: Final = View(
    "mesh",
    _on_most_ranks,
    [(Record.step_seconds, "fast")],
    against=lambda side, _: side.name == "none",
    subject=_split,
    where=lambda findings, side: findings.settings.where(side.record),
    value=lambda record: record.parallelism or "none",
)


def split_answer(findings: Findings) -> Answer | None:
    """Return how many times as fast as split batches split layers are, per network on the most ranks."""
    return SPLIT.answer(findings)


SPLITS: Final = Declaration(48, lambda _: Section("Splits"), answer=split_answer, name="splits", table="scaling")

NOISE: Final = "~0"
"""Exposed communication that does not differ from 0."""


def _sums(findings: Findings) -> list[Record]:
    """Return the trainings whose strategies send the same sums, and differ in when."""
    known = [record for record in findings.records if record.strategy in {"synchronous", "layerwise"}]
    return [record for record in known if record.ranks > 1 and record.step_seconds and not record.independent]


def _sum(_: Findings, side: Side, sides: Sequence[Side]) -> str:
    """Return a strategy in words; "synchronous" has the usual buckets."""
    names = Names(record for each in sides for record in each.records)
    return "summing in buckets" if side.name == "synchronous" else in_words(names(side.record), side.record)


def _with_scheme(findings: Findings, side: Side) -> str:
    return findings.settings.where(side.record, title_of(scheme_name(side.record)).removeprefix("a "))


HIDING: Final = View(
    "training",
    _sums,
    [(Record.exposed_communication_seconds, "overlaps")],
    against=lambda side, _: parts(side.name) == ("synchronous", {"bucket_bytes": "0"}),
    subject=_sum,
    where=_with_scheme,
)
SAVING: Final = replace(
    HIDING, tell=[(Record.step_seconds, "saves")], against=lambda side, sides: side is sides[0]
)


def overlap_answer(findings: Findings) -> Answer | None:
    """Return the share of the communication that each strategy overlaps, and what it saves of the first one."""
    known = [answer for view in (HIDING, SAVING) if (answer := view.answer(findings))]
    first, *lines = [line for answer in known for line in (answer.headline, *answer.details)] or [""]
    return Answer(first, lines, known[-1].basis) if first else None


OVERLAP: Final = Declaration(
    82, lambda _: Section("Overlap"), answer=overlap_answer, name="overlap", table="scaling"
)

NOTE: Final = (
    "Beyond computing: step minus a rank's compute time. Sent per rank: bytes of the rank that sends most in a "
    "step; a message that overlaps with the next step counts in the next one. Sent per host: bytes to other "
    "hosts; only simulations without a topology have it. Memory: parameters, gradients and optimizer state, "
    "measured. Rate for 90 %: link rates at which computing takes 90 % of a step, the first if all messages "
    "overlap with computing, the second if none do."
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


def _sharded(findings: Findings) -> list[Record]:
    """Return the cases of sharded and of synchronous training, on the most ranks of each problem."""
    most = [
        row
        for methods in findings.problems
        for row in _sharding(methods)
        if row.scale.record.ranks == methods[0].scales[-1].record.ranks
    ]
    known = [row for row in most if _shards(row) or row.scale.record.strategy == "synchronous"]
    return [record for row in known for record in row.scale.records]


def _place(findings: Findings, side: Side) -> str:
    """Return where a method ran, with its scheme if sharded methods have several."""
    alike = [record for record in findings.once(_sharded) if record.problem() == side.record.problem()]
    schemes = {scheme_name(record) for record in alike if record.strategy != "synchronous"}
    scheme = title_of(scheme_name(side.record)).removeprefix("a ") if len(schemes) > 1 else ""
    return findings.settings.where(side.record, scheme)


SHARDED: Final = View(
    "training",
    lambda findings: findings.once(_sharded),
    [
        (Record.memory_bytes_per_rank, "needs"),
        (Record.bytes_sent_per_rank, "sends"),
        (Record.step_seconds, "saves"),
    ],
    against=lambda side, _: side.record.strategy == "synchronous",
    subject=lambda _, side, __: title_of(side.record.strategy, side.record.system or ""),
    where=_place,
)


def sharding_answer(findings: Findings) -> Answer | None:
    """Return memory, bytes and step of sharded methods / synchronous training, on most ranks."""
    return SHARDED.answer(findings)


def memory_charts(findings: Findings) -> list[Bars]:
    """Return the memory of each method whose problem has sharded ones, the most first."""
    made = []
    for methods in findings.problems:
        known = [(row, row.scale.median(Record.memory_bytes_per_rank)) for row in _sharding(methods)]
        bars = sorted(((row.name, size) for row, size in known if size), key=lambda bar: -bar[1])
        if bars:
            names, sizes = zip(*bars, strict=True)
            title = ": ".join(filter(None, ("Memory per rank", findings.settings.name(methods[0].record))))
            note = "Parameters, gradients and optimizer state on the rank with most."
            made.append(Bars(title, names, {"memory": sizes}, Axis("bytes", volume), note))
    return made


SHARDING: Final = Declaration(
    88,
    lambda findings: per_setting(findings, "Sharding", COLUMNS, _sharding, NOTE, "most ranks first"),
    answer=sharding_answer,
    figures=(memory_charts,),
    name="sharding",
)


class Cost(NamedTuple):
    """One program both ways; seconds of a step, or of one operation, each of the slowest rank."""

    of: str
    record: Record
    without: float
    having: float
    judged: judging.Judged
    """``having`` / ``without``."""

    @property
    def is_noise(self) -> bool:
        """True if the program is not decidedly slower."""
        return self.judged.word != "more"

    @property
    def words(self) -> str:
        """By how much the program is slower."""
        if self.is_noise and self.judged.reason != "one launch":
            return "does not take measurably longer"
        return f"takes {longer(*self.judged.size)}"


def measured_costs(findings: Findings) -> list[Cost]:
    """Return exchanges through the fabric against mpi4py's own, by size, then trainings that traced even steps.

    Tracing costs less than the drift of a machine from one case to the next, so the even steps of a launch are
    compared with its odd ones. Seeds are launches.
    """
    return findings.once(_measured_costs)


def _measured_costs(findings: Findings) -> list[Cost]:
    known = [record for record in findings.records if record.kind == "pairwise" and record.time_p50_seconds]
    exchanges = list[Cost]()
    sides = group_by_key(((record.problem(), record.ranks), record) for record in known)
    both = [({record.aggregation: record for record in alike}, alike[0]) for alike in sides.values()]
    both = [(named, record) for named, record in both if {"raw", "fabric"} <= named.keys()]
    verdicts = judge_methods([[[named["fabric"]], [named["raw"]]] for named, _ in both], Record.time_p50_seconds)
    for (named, record), (verdict,) in zip(both, verdicts, strict=True):
        without, having = (named[name].time_p50_seconds or 0.0 for name in ("raw", "fabric"))
        exchanges.append(Cost("fabric", record, without, having, verdict))
    traced = [launch for launch in findings.launches if launch.record.settings.get("trace") == "alternating"]
    cases = group_by_key(
        ((launch.record.problem(), launch.record.method, launch.record.ranks), launch)
        for launch in traced
        if len(launch.seconds) > 1
    )
    families = [[_every_second(launches, rest) for rest in (0, 1)] for launches in cases.values()]
    costs = [
        Cost("tracing", launches[0].record, without.middle, having.middle, verdict)
        for launches, (having, without), (verdict,) in zip(
            cases.values(), families, judging.judge(families), strict=True
        )
    ]
    exchanges.sort(key=lambda cost: cost.record.message_bytes or 0)
    return [*exchanges, *sorted(costs, key=lambda cost: cost.judged.size.value)]


def _every_second(launches: Sequence[Launch], rest: int) -> judging.Side:
    """Return the median of the steps with this rest when divided by 2, by launch and seed."""
    fair = undisturbed(launches)
    times: dict[Hashable, float] = {
        (launch.record.launch, launch.record.seed): float(np.median(launch.seconds[offset::2]))
        for launch in fair
        for offset in [(launch.record.warmup_steps + rest) % 2]
    }
    return judging.Side(times, disturbed=bool(fair[0].disturbed))


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
    return "within noise" if cost.is_noise else seconds(cost.having - cost.without)


COST_COLUMNS: Final = (
    Column[Cost]("of", lambda cost: cost.of),
    Column[Cost]("case", lambda cost: _name(cost.record)),
    Column[Cost]("ranks", lambda cost: str(cost.record.ranks)),
    Column[Cost]("without", lambda cost: seconds(cost.without)),
    Column[Cost]("with", lambda cost: seconds(cost.having)),
    Column[Cost]("difference", _difference),
    Column[Cost]("with / without", lambda cost: digits(cost.judged.size.value), importance="answer"),
    Column[Cost]("95 %", lambda cost: interval(*cost.judged.size[1:]), importance="answer"),
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
        worst = max(exchanges, key=lambda cost: cost.judged.size.value)
        place = "at worst, " if len(exchanges) > 1 else ""
        doubt = ", where one launch decides nothing" if worst.judged.reason == "one launch" else ""
        size = f"({place}{_name(worst.record)}{doubt})"
        told.append(f"an exchange {worst.words} through hpcdl than with mpi4py alone {size}")
    if traced:
        worst = max(traced, key=lambda cost: cost.judged.size.value)
        told.append(f"a step {worst.words} with tracing")
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
    ratios = [cost.judged.size for cost in costs]
    note = "Bars are 95 % intervals; 1: no cost."
    chart = Intervals("Time with / without the fabric, tracing", labels, ratios, Axis("with / without"), 1.0, note)
    return [chart] if costs else []


COSTS: Final = Declaration(19, costs_page, answer=costs_answer, figures=(cost_charts,), name="costs")
