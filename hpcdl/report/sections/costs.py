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
from hpcdl.report.formats.cells import NONE, digits, interval, longer, percent, plural, seconds, volume
from hpcdl.report.formats.document import Axis, Intervals, Section
from hpcdl.report.formats.tables import Column, table
from hpcdl.report.run.declaration import Answer, Declaration
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.method_names import scheme_name

HANDED_ON: Final = {"fabric": True, "raw": False}
"""Aggregations of a pairwise case: through the fabric, or plain MPI."""


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

    @property
    def difference(self) -> str:
        """Difference of both times."""
        return "within noise" if self.is_noise else seconds(self.having.value - self.without.value)

    @property
    def bounds(self) -> str:
        """Interval of the ratio."""
        return interval(self.ratio.low, self.ratio.high) if math.isfinite(self.ratio.low) else NONE


def of_fabric(findings: Findings) -> list[Cost]:
    """Return exchanges through the fabric against mpi4py's own, for each size that was measured both ways."""
    groups: dict[object, tuple[Record, dict[bool, list[Vector]]]] = {}
    for launch in findings.launches:
        aggregation = launch.record.aggregation
        if launch.record.kind == "pairwise" and aggregation in HANDED_ON and len(launch.seconds):
            key = (launch.record.problem(), launch.record.ranks)
            _, sides = groups.setdefault(key, (launch.record, {True: [], False: []}))
            sides[HANDED_ON[aggregation]].append(launch.seconds)
    costs = [
        Cost(
            "fabric",
            fields,
            launches_interval(sides[False]),
            launches_interval(sides[True]),
            ratio_interval(sides[True], sides[False]),
        )
        for fields, sides in groups.values()
        if sides[True] and sides[False]
    ]
    return sorted(costs, key=lambda cost: cost.record.message_bytes or 0)


def of_tracing(findings: Findings) -> list[Cost]:
    """Return tracing every event against tracing steps only, from the even and the odd steps of one training.

    The difference is smaller than the drift of a machine from one case to the next, so each launch is compared
    with itself; the intervals are over launches. Seeds are launches.
    """
    groups: dict[object, tuple[Record, dict[bool, list[Vector]]]] = {}
    for launch in findings.launches:
        if launch.record.settings.get("trace") == "alternating" and len(launch.seconds) > 1:
            key = (launch.record.problem(), launch.record.method, launch.record.ranks)
            _, sides = groups.setdefault(key, (launch.record, {True: [], False: []}))
            for offset in (0, 1):
                sides[(launch.record.warmup_steps + offset) % 2 == 0].append(launch.seconds[offset::2])
    costs = []
    for fields, sides in groups.values():
        without, having = (np.array([np.median(launch) for launch in sides[side]]) for side in (False, True))
        both = launches_interval(sides[False]), launches_interval(sides[True])
        costs.append(Cost("tracing", fields, *both, median_interval(having / without)))
    return sorted(costs, key=lambda cost: cost.ratio.value)


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
    Column[Cost]("difference", lambda cost: cost.difference),
    Column[Cost]("with / without", lambda cost: digits(cost.ratio.value), importance="answer"),
    Column[Cost]("95 %", lambda cost: cost.bounds, importance="answer"),
)


def page(findings: Findings) -> Section:
    """Return one row per exchange, and per training that traced every second step."""
    costs = [*of_fabric(findings), *of_tracing(findings)]
    made = [table(COLUMNS, costs, notes=[NOTE], left=2)] if costs else []
    return Section("Cost of the fabric and of tracing", tables=made)


def answer(findings: Findings) -> Answer | None:
    """Return the largest cost of an exchange and of tracing, and the time of the largest simulation."""
    exchanges, traced = of_fabric(findings), of_tracing(findings)
    told = []
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
    headline = ", and ".join(told)
    simulated = [record for record in findings.records if record.simulation_seconds]
    details = []
    if simulated:
        slow = max(simulated, key=lambda record: record.simulation_seconds or 0)
        what = f"{slow.collective or slow.training} on {slow.ranks} ranks"
        details.append(f"The longest simulation, {what}, takes {seconds(slow.simulation_seconds)} to run.")
    basis = [record for record in findings.records if not record.network]
    return Answer(f"{headline[0].upper()}{headline[1:]}.", details, basis)


def charts(findings: Findings) -> list[Intervals]:
    """Return the ratio of each program with and without the fabric or tracing."""
    costs = [*of_fabric(findings), *of_tracing(findings)]
    labels = [f"{cost.of}: {_name(cost.record)}, {plural(cost.record.ranks, 'rank')}" for cost in costs]
    ratios = [
        (cost.ratio.value, *((None, None) if math.isnan(cost.ratio.low) else cost.ratio[1:])) for cost in costs
    ]
    note = "Bars are 95 % intervals; 1: no cost."
    chart = Intervals("Time with / without the fabric, tracing", labels, ratios, Axis("with / without"), 1.0, note)
    return [chart] if costs else []


SECTION: Final = Declaration(20, page, answer=answer, figures=(charts,))
