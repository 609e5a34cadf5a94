"""Arithmetic for each byte of parameters: efficiency of replayed networks over it; only for a suite that asks."""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from hpcdl.analysis.run.record import Record
from hpcdl.report.formats.cells import digits, seconds
from hpcdl.report.formats.document import Axis, Bars, Section, Table
from hpcdl.report.published_results import number
from hpcdl.report.run.contents import Answer, Declaration, certainty
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.grouping import Row, rows
from hpcdl.report.sections.scaling import verdict

HEADER: Final = ("network", "FLOP a byte", "step", "efficiency", "near-linear")
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
    return sorted((one for one in known if math.isfinite(one.flop)), key=lambda one: one.flop)


def page(findings: Findings) -> Section:
    """Return a row for each network."""
    cells = [
        (
            one.name,
            digits(one.flop),
            seconds(one.row.step_seconds),
            digits(one.efficiency),
            verdict(one.row.scale),
        )
        for one in networks(findings)
    ]
    table = Table("", HEADER, cells, 1, [NOTE], "least arithmetic for a byte first")
    return Section("Arithmetic for each byte of parameters", tables=[table] if cells else [])


def answer(findings: Findings) -> Answer | None:
    """Return the networks with the least and the most arithmetic for a byte, and their efficiencies."""
    known = networks(findings)
    if len(known) < 2:
        return None
    ends = [f"{digits(one.efficiency)} with {digits(one.flop)} FLOP ({one.name})" for one in (known[0], known[-1])]
    basis = certainty([one.row.scale.record for one in known])
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
    lengths = {"efficiency": [one.efficiency for one in known]}
    return [Bars(title, [one.name for one in known], lengths, Axis("efficiency"), NOTE)]


SECTION: Final = Declaration(26, page, rows=40, answer=answer, figures=(charts,))
