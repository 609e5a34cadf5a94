"""Traffic through the switches of a cluster, by level."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdl.report.formats.cells import NONE, percent, volume
from hpcdl.report.formats.document import Section, Table
from hpcdl.report.run.contents import Declaration

if TYPE_CHECKING:
    from hpcdl.report.run.findings import Findings


def page(found: Findings) -> Section:
    """Return one row per case: bytes of a step within nodes and through each level of switches."""
    depth = max((len(one.bytes_per_step) for one in found.switch_traffic), default=0)
    rows = []
    for one in found.switch_traffic:
        cells = [volume(size) for size in one.bytes_per_step] + [NONE] * (depth - len(one.bytes_per_step))
        highest = percent(one.bytes_per_step[-1], sum(one.bytes_per_step))
        rows.append((str(one.fields.get("case")), str(one.fields.get("ranks")), *cells, highest))
    crossed = tuple(f"{level} level{'s' * (level > 1)}" for level in range(1, depth))
    header = ("case", "ranks", "within nodes", *crossed, "through the highest")
    note = "Bytes that all ranks send in a step, by the levels of switches between sender and receiver."
    return Section("Traffic through switches", tables=[Table("", header, rows, 1, [note])] if rows else [])


SECTION = Declaration(125, page)
