"""Arithmetic for each byte of parameters: efficiency of replayed networks over it; only for a suite that asks."""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from hpcdl.analysis.run.record import Record
from hpcdl.report.formats.cells import digits, seconds
from hpcdl.report.formats.document import Axis, Bars, Column, Section, table
from hpcdl.report.run.declaration import Answer, Declaration, certainty
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.grouping import Row, rows
from hpcdl.report.run.published_results import number
from hpcdl.report.sections.scaling import verdict

NOTE: Final = (
    "FLOP a byte: arithmetic of a rank's step by the bytes of the parameters. Each byte costs the same messages: "
    "the more arithmetic there is for it, the less they weigh."
)


class Network(NamedTuple):
    """A network at the most ranks that it was replayed on."""

    row: Row
    flop: float
    """Arithmetic for each byte of parameters."""
    efficiency: float

    @property
    def name(self) -> str:
        """Name of the network."""
        return str(self.row.scale.record.model)


def networks(findings: Findings) -> list[Network]:
    """Return the networks, the least arithmetic for a byte first; none unless the suite asks."""
    if "arithmetic" not in findings.answered_by:
        return []
    every = [row for methods in findings.problems for row in rows(methods)]
    largest = max((row.scale.record.ranks for row in every), default=1)
    known = [
        Network(row, number(row.scale.record, "flop_by_byte_of_parameters") or math.nan, efficiency)
        for row in every
        if row.scale.record.ranks == largest and (efficiency := row.scale.median(Record.efficiency)) is not None
    ]
    return sorted((network for network in known if math.isfinite(network.flop)), key=lambda network: network.flop)


COLUMNS: Final[tuple[Column[Network], ...]] = (
    Column("network", lambda network: network.name),
    Column("FLOP a byte", lambda network: digits(network.flop)),
    Column("step", lambda network: seconds(network.row.step_seconds)),
    Column("efficiency", lambda network: digits(network.efficiency), importance="answer"),
    Column("near-linear", lambda network: verdict(network.row.scale), importance="answer"),
)


def page(findings: Findings) -> Section:
    """Return a row for each network."""
    known = networks(findings)
    made = [table(COLUMNS, known, notes=[NOTE], order="least arithmetic for a byte first")] if known else []
    return Section("Arithmetic for each byte of parameters", tables=made)


def answer(findings: Findings) -> Answer | None:
    """Return the networks with the least and the most arithmetic for a byte, and their efficiencies."""
    known = networks(findings)
    if len(known) < 2:
        return None
    ends = [
        f"{digits(network.efficiency)} with {digits(network.flop)} FLOP ({network.name})"
        for network in (known[0], known[-1])
    ]
    basis = certainty([network.row.scale.record for network in known])
    ranks = known[0].row.scale.record.ranks
    return Answer(
        f"Efficiency on {ranks} ranks by arithmetic for each byte of parameters: {' to '.join(ends)} ({basis})."
    )


def charts(findings: Findings) -> Sequence[Bars]:
    """Return the efficiency of each network, in the order of the table."""
    known = networks(findings)
    if not known:
        return []
    title = f"Efficiency on {known[0].row.scale.record.ranks} ranks, least arithmetic for a byte first"
    lengths = {"efficiency": [network.efficiency for network in known]}
    return [Bars(title, [network.name for network in known], lengths, Axis("efficiency"), NOTE)]


SECTION: Final = Declaration(26, page, rows=40, answer=answer, figures=(charts,))
