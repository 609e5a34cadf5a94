"""Memory of each rank, and distance of the ranks' parameters from each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hpcdl.report.formats.cells import NONE, digits, volume
from hpcdl.report.formats.document import Section, Table
from hpcdl.report.run.contents import Declaration
from hpcdl.report.run.grouping import rows

if TYPE_CHECKING:
    from hpcdl.report.run.findings import Findings
    from hpcdl.report.run.grouping import Row

BYTES: Final = {"float64": 8}
"""Of a parameter; below that precision they are kept in float32."""


def page(found: Findings) -> Section:
    """Return one table per problem; methods that are all alike have one row."""
    tables = []
    for methods in found.problems:
        shown = [row for row in rows(methods) if row.scale["memory_bytes_per_rank"]]
        if not shown:
            continue
        cells = [_memory(row) for row in shown]
        if len(cells) > 1 and len({tuple(known) for _, _, *known in cells}) == 1:
            cells = [(f"all {len(cells)}", NONE, *cells[0][2:])]
        header = ("method", "ranks", "memory per rank", "of the parameters", "consensus distance")
        tables.append(Table(found.settings.title(shown[0].scale.records[0]), header, cells).without_empty())
    note = (
        "Memory: vectors of the rank that holds most, also as a multiple of the parameters: parameters, "
        "gradients, what optimizer and strategy keep, and copies that wait for the test set, one for each look at "
        "it, where training does not wait for that. Consensus distance: root mean square over ranks of the "
        "distance of a rank's parameters from their average, at the last look at the test set."
    )
    return Section("Memory and consensus", [note] if tables else [], tables=tables)


def _memory(row: Row) -> tuple[str, ...]:
    scale = row.scale
    size, parameters = scale.median("memory_bytes_per_rank"), scale["parameters"]
    times = size / (parameters * BYTES.get(scale["dtype"], 4)) if size and parameters else None
    return (
        row.name,
        str(scale["ranks"]),
        volume(size),
        f"{digits(times)} x" if times else NONE,
        digits(scale.median("consensus_distance")),
    )


SECTION = Declaration(90, page)
