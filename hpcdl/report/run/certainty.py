"""Certainty of a sentence: launches and seeds that its numbers rest on, and reasons for doubt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpcdl.analysis.run.record import Record
from hpcdl.report.formats.cells import plural

if TYPE_CHECKING:
    from hpcdl.report.run.findings import Findings


def certainty(findings: Findings, records: Sequence[Record]) -> str:
    """Return what numbers of ``records`` rest on, in words: the fewest launches and seeds, and each doubt."""
    measured = [record for record in records if not record.network]
    simulated = len(records) - len(measured)
    words = [f"{simulated} of {len(records)} cases simulated" if measured else "simulated"] if simulated else []
    if measured:
        launches = min(int(record.launches or 1) for record in measured)
        words.append("1 launch" if launches == 1 else f"{launches} launches")
        words += ["emulated links"] if findings.run.environment.get("emulated") else []
        computing = {record.ranks for record in measured if record.kind != "replay"}
        words += ["OVERSUBSCRIBED"] if computing & set(findings.oversubscribed) else []
        words += ["DISTURBED"] if any(record.disturbed for record in measured) else []
    if any(record.final_accuracy is not None for record in records):
        words.append(plural(len({record.seed for record in records}), "seed"))
    return ", ".join(words)
