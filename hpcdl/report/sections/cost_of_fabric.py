"""Cost of the fabric: the same exchange through the fabric and by mpi4py alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdl.report.formats.cells import digits, volume
from hpcdl.report.formats.document import Section, Table
from hpcdl.report.run.contents import Answer, Declaration
from hpcdl.report.run.overhead import cells, is_noise

if TYPE_CHECKING:
    from hpcdl.report.run.findings import Findings


def page(found: Findings) -> Section:
    """Return one row per size: difference and ratio."""
    rows = [(volume(one.fields.get("message_bytes")), *cells(one)) for one in found.cost_of_fabric]
    header = ("size", "raw", "fabric", "fabric - raw", "95 %", "fabric / raw", "ratio 95 %")
    notes = ["raw: mpi4py's Sendrecv. fabric: the same exchange as every algorithm here does it."]
    return Section("Cost of the fabric", tables=[Table("", header, rows, notes=notes)] if rows else [])


def terminal(found: Findings) -> Section:
    """Return the same rows without intervals."""
    return page(found).brief("95 %")


def answer(found: Findings) -> Answer | None:
    """Return the ratio at the smallest and the largest size."""
    costs = sorted(found.cost_of_fabric, key=lambda one: one.fields.get("message_bytes") or 0)
    if not costs:
        return None
    chosen = costs if len(costs) < 2 else [costs[0], costs[-1]]
    parts = [
        f"{digits(one.ratio.value)} at {volume(one.fields.get('message_bytes'))}"
        + (" (within noise)" if is_noise(one) else "")
        for one in chosen
    ]
    return Answer(f"Time of an exchange through the fabric by mpi4py's: {', '.join(parts)}.")


SECTION = Declaration(20, page, terminal, answer)
