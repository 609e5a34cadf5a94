"""Costs of the fabric and of tracing: the same program with and without, measured in one run."""

import math
from typing import Final, NamedTuple

import numpy as np

from hpcdl.analysis.run.record import ANY, Record
from hpcdl.analysis.statistics.estimates import (
    Interval,
    Vector,
    launches_interval,
    median_interval,
    ratio_interval,
)
from hpcdl.report.formats.cells import digits, interval, longer, percent, plural, seconds, sentence, volume
from hpcdl.report.formats.document import Axis, Intervals, Section
from hpcdl.report.formats.tables import Column
from hpcdl.report.run.declaration import Answer, Declaration, one_table
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.method_names import scheme_name

Sides = tuple[list[Vector], list[Vector]]
"""Times of the launches of a program without, and with the fabric or tracing."""


class Cost(NamedTuple):
    """One program measured both ways; seconds of a step, or of one operation, each of the slowest rank."""

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


def measured(findings: Findings) -> list[Cost]:
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


NOTE: Final = (
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


COLUMNS: Final = (
    Column[Cost]("of", lambda cost: cost.of),
    Column[Cost]("case", lambda cost: _name(cost.record)),
    Column[Cost]("ranks", lambda cost: str(cost.record.ranks)),
    Column[Cost]("without", lambda cost: seconds(cost.without.value)),
    Column[Cost]("with", lambda cost: seconds(cost.having.value)),
    Column[Cost](
        "difference", lambda c: "within noise" if c.is_noise else seconds(c.having.value - c.without.value)
    ),
    Column[Cost]("with / without", lambda cost: digits(cost.ratio.value), importance="answer"),
    Column[Cost]("95 %", lambda cost: interval(*cost.ratio[1:]), importance="answer"),
)


def page(findings: Findings) -> Section:
    """Return one row per exchange, and per training that traced every second step."""
    return one_table("Cost of the fabric and of tracing", COLUMNS, measured(findings), NOTE, left=2)


def answer(findings: Findings) -> Answer | None:
    """Return the largest cost of an exchange and of tracing, and the time of the largest simulation."""
    costs = measured(findings)
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


def charts(findings: Findings) -> list[Intervals]:
    """Return the ratio of each program with and without the fabric or tracing."""
    costs = measured(findings)
    labels = [f"{cost.of}: {_name(cost.record)}, {plural(cost.record.ranks, 'rank')}" for cost in costs]
    ratios = [cost.ratio for cost in costs]
    note = "Bars are 95 % intervals; 1: no cost."
    chart = Intervals("Time with / without the fabric, tracing", labels, ratios, Axis("with / without"), 1.0, note)
    return [chart] if costs else []


SECTION: Final = Declaration(20, page, answer=answer, figures=(charts,))
