"""Break-even of compression over networks: the fastest network on which each compressor's step is still faster."""

from collections.abc import Sequence
from typing import Final

from hpcdl.analysis.run.record import Key
from hpcdl.report.formats.cells import digits
from hpcdl.report.formats.document import Section
from hpcdl.report.run.contents import Answer, Declaration, certainty
from hpcdl.report.run.findings import Findings
from hpcdl.report.run.grouping import Row
from hpcdl.report.sections.compression import compared, gain_of


def answer(findings: Findings) -> Answer | None:
    """Return the fastest network up to which each compressor's step is faster than the dense one.

    A line for each problem on several simulated networks, which are ordered by their dense steps.
    """
    groups: dict[Key, list[tuple[Row, Row, float]]] = {}
    for methods in findings.problems:
        pairs = [
            (row, dense, gain)
            for row, dense in compared(methods)
            if dense is not None and (gain := gain_of(row, dense))
        ]
        if methods[0].record.network:
            groups.setdefault(methods[0].record.problem("network"), []).extend(pairs)
    lines = []
    for group in groups.values():
        group.sort(key=lambda pair: -(pair[1].step_seconds or 0.0))
        gains: dict[str, list[tuple[str, float]]] = {}
        for row, _, gain in group:
            gains.setdefault(row.name, []).append((str(row.scale.record.network), gain))
        used = [record for row, dense, _ in group for record in (*row.scale.records, *dense.scale.records)]
        basis = certainty(used)
        if len({row.scale.record.network for row, *_ in group}) > 1:
            parts = "; ".join(f"{name} {_up_to(each)}" for name, each in gains.items())
            lines.append(f"Compressed steps are faster than the fastest dense one with {parts} ({basis}).")
    return Answer(lines[0], lines[1:]) if lines else None


def _up_to(gains: Sequence[tuple[str, float]]) -> str:
    """Return the last network before one on which the dense step is faster, from the slowest on."""
    slower = next((place for place, (_, gain) in enumerate(gains) if gain <= 1), len(gains))
    network, gain = gains[max(0, slower - 1)]
    times = f"{digits(gain)} times as fast"
    if slower == 0:
        return f"on none ({times} on {network})"
    if slower == len(gains):
        return f"up to {network} ({times}, the fastest network here)"
    return f"up to {network} ({times}; {digits(gains[slower][1])} on {gains[slower][0]})"


SECTION: Final = Declaration(86, lambda _: Section("Break-even"), answer=answer)
