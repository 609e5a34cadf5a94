"""Certainty of a sentence: launches and seeds that its numbers rest on, and reasons for doubt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hpcdl.analysis.run.record import Record
from hpcdl.report.formats.cells import plural

DOUBTS: Final = {"emulated": "emulated links", "oversubscribed": "OVERSUBSCRIBED", "disturbed": "DISTURBED"}
"""Words for the marks of measured records."""


def certainty(records: Sequence[Record]) -> str:
    """Return what numbers of ``records`` rest on, in words: the fewest launches and seeds, and each doubt."""
    measured = [record for record in records if not record.network]
    simulated = len(records) - len(measured)
    words = [f"{simulated} of {len(records)} cases simulated" if measured else "simulated"] if simulated else []
    if measured:
        launches = min(record.launches for record in measured)
        words.append("1 launch" if launches == 1 else f"{launches} launches")
        marks = {mark for record in measured for mark in record.marks}
        words += [word for mark, word in DOUBTS.items() if mark in marks]
    if any(record.final_accuracy is not None for record in records):
        words.append(plural(len({record.seed for record in records}), "seed"))
    return ", ".join(words)
