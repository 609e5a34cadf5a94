"""Break-even of compression over networks: the fastest network on which each compressor's step is still faster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from hpcdl.analysis.run.record_fields import problem
from hpcdl.report.formats.cells import NONE, digits
from hpcdl.report.formats.document import Section, Table
from hpcdl.report.run.certainty import certainty
from hpcdl.report.run.contents import Answer, Declaration
from hpcdl.report.sections.compression import compared, gain_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcdl.analysis.run.record_fields import Key
    from hpcdl.report.run.findings import Findings
    from hpcdl.report.run.grouping import Row


NOTE: Final = "Dense step by compressed step; networks from the slowest dense step to the fastest."


class Sweep(NamedTuple):
    """One problem on several networks."""

    networks: list[str]
    """Slowest dense step first."""
    gains: Mapping[str, Mapping[str, float]]
    """Dense step by the compressed one, by method and network."""
    rows: list[Row]


def _sweeps(findings: Findings) -> list[Sweep]:
    """Return the problems with compressed and dense steps on several networks."""
    groups: dict[Key, list[tuple[str, Row, Row]]] = {}
    for methods in findings.problems:
        fields = methods[0].fields
        groups.setdefault(problem(fields, "network"), []).extend(
            (str(fields["network"]), row, dense)
            for row, dense in compared(methods)
            if fields.get("network") and dense is not None and gain_of(row, dense)
        )
    sweeps = []
    for found in groups.values():
        dense_steps = {network: dense.step_seconds or 0.0 for network, _, dense in found}
        if len(dense_steps) < 2:
            continue
        gains: dict[str, dict[str, float]] = {}
        for network, row, dense in found:
            gains.setdefault(row.name, {})[network] = gain_of(row, dense) or 0.0
        networks = sorted(dense_steps, key=lambda name: -dense_steps[name])
        sweeps.append(Sweep(networks, gains, [row for _, *pair in found for row in pair]))
    return sweeps


def page(findings: Findings) -> Section:
    """Return one table per problem: a row for each compressor, a column for each network."""
    tables = [
        Table("", ("method", *sweep.networks), [
            (name, *(digits(gains[network]) if network in gains else NONE for network in sweep.networks))
            for name, gains in sweep.gains.items()
        ], 1, [NOTE])
        for sweep in _sweeps(findings)
    ]  # fmt: skip
    return Section("Break-even", tables=tables)


def answer(findings: Findings) -> Answer | None:
    """Return the fastest network up to which each compressor's step is faster than the dense one."""
    lines = []
    for sweep in _sweeps(findings):
        parts = [_up_to(sweep, name) for name in sweep.gains]
        basis = certainty(findings, [record for row in sweep.rows for record in row.scale.records])
        lines.append(f"Compressed steps are faster than the fastest dense one with {'; '.join(parts)} ({basis}).")
    return Answer(lines[0], lines[1:]) if lines else None


def _up_to(sweep: Sweep, name: str) -> str:
    gains = sweep.gains[name]
    known = [network for network in sweep.networks if network in gains]
    slower = next((place for place, network in enumerate(known) if gains[network] <= 1), len(known))
    if slower == 0:
        return f"{name} on none ({digits(gains[known[0]])} times as fast on {known[0]})"
    last = f"{name} up to {known[slower - 1]} ({digits(gains[known[slower - 1]])} times as fast"
    if slower == len(known):
        return f"{last}, the fastest network here)"
    return f"{last}; {digits(gains[known[slower]])} on {known[slower]})"


SECTION: Final = Declaration(86, page, answer=answer)
