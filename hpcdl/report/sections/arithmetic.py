"""Arithmetic intensity: efficiency of replayed networks over FLOP per byte of parameters; only if a suite asks."""

import math
from typing import Final, NamedTuple

from hpcdl.analysis.run.record import Record
from hpcdl.analysis.run.scaling import NEAR_LINEAR
from hpcdl.analysis.statistics.estimates import rank_correlation
from hpcdl.report.formats.cells import bounded, digits, seconds
from hpcdl.report.formats.document import Axis, Lines, Point, Section, Series
from hpcdl.report.formats.tables import Column
from hpcdl.report.run.declaration import Answer, Declaration, one_table
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.grouping import Row, rows
from hpcdl.report.run.literature import network_name
from hpcdl.report.run.near_linear import verdict
from hpcdl.report.run.published_results import number

DECIDES: Final = 0.7
"""Correlation from which on one quantity decides about the other: then it explains half of the variance."""
NOTE: Final = (
    "Arithmetic intensity: FLOP of a rank's step / bytes of the parameters. With more FLOP per byte a network "
    "computes longer for each byte that it sends."
)


class Network(NamedTuple):
    """A network at the most ranks that it was replayed on."""

    name: str
    row: Row
    intensity: float
    """FLOP of a step per byte of parameters."""
    efficiency: float


def networks(findings: Findings) -> list[Network]:
    """Return the networks, the least arithmetic intensity first; none unless the suite asks."""
    if "arithmetic" not in findings.answered_by:
        return []
    every = [row for methods in findings.problems for row in rows(methods)]
    largest = max((row.scale.record.ranks for row in every), default=1)
    known = [
        Network(str(row.scale.record.model), row, intensity, efficiency)
        for row in every
        if row.scale.record.ranks == largest
        and (efficiency := row.scale.median(Record.efficiency)) is not None
        and math.isfinite(intensity := number(row.scale.record, "flop_by_byte_of_parameters") or math.nan)
    ]
    return sorted(known, key=lambda network: network.intensity)


COLUMNS: Final[tuple[Column[Network], ...]] = (
    Column("network", lambda network: network.name),
    Column("FLOP / byte", lambda network: digits(network.intensity)),
    Column("step", lambda network: seconds(network.row.step_seconds)),
    Column("efficiency", lambda network: digits(network.efficiency), importance="answer"),
    Column("near-linear", lambda network: verdict(network.row.scale), importance="answer"),
)


def page(findings: Findings) -> Section:
    """Return a row for each network."""
    order = "least arithmetic intensity first"
    return one_table("Arithmetic intensity", COLUMNS, networks(findings), NOTE, order=order)


def answer(findings: Findings) -> Answer | None:
    """Return whether arithmetic intensity decides the efficiency, both ends, and the near-linear networks."""
    known = networks(findings)
    if len(known) < 2:
        return None
    ranks = known[0].row.scale.record.ranks
    correlation = rank_correlation([n.intensity for n in known], [n.efficiency for n in known])
    measure = f"Spearman's correlation of both on {ranks} ranks is {bounded(*correlation)}"
    verb = "Arithmetic intensity " + ("decides" if correlation.low >= DECIDES else "does not decide")
    if correlation.low < DECIDES <= correlation.high:
        verb = "Not decided whether arithmetic intensity decides"
    headline = f"{verb} the efficiency: {measure}, over {len(known)} networks."
    if not math.isfinite(correlation.low):
        least = "Spearman's correlation needs at least four networks"
        headline = f"Not decided: {least}, and {len(known)} were replayed."
    ends = []
    for name, _, intensity, efficiency in (known[0], known[-1]):
        flop = f"{float(f'{intensity:.3g}'):,g} FLOP/B"
        ends.append(f"{network_name(name)} has {flop} and an efficiency of {digits(efficiency)}")
    linear = [network_name(network.name) for network in known if network.row.scale.record.near_linear]
    lines = [
        f"Lowest and highest intensity: {', and '.join(ends)}.",
        f"Near-linear on {ranks} ranks: {', '.join(linear) or 'none'}.",
    ]
    return Answer(headline, lines, [network.row.scale.record for network in known])


def charts(findings: Findings) -> list[Lines]:
    """Return the efficiency of each network over its arithmetic intensity."""
    known = networks(findings)
    if not known:
        return []
    title = f"Efficiency on {known[0].row.scale.record.ranks} ranks over arithmetic intensity"
    points = [Point(network.intensity, network.efficiency) for network in known]
    level = [Point(end.x, NEAR_LINEAR) for end in (points[0], points[-1])]
    series = [Series("network", points, names=[network.name for network in known])]
    series.append(Series("near-linear", level, "reference"))
    axes = Axis("FLOP / byte of parameters", digits, 10), Axis("efficiency")
    return [Lines(title, *axes, series, NOTE)]


SECTION: Final = Declaration(26, page, rows=40, answer=answer, figures=(charts,))
