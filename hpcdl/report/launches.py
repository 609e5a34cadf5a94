"""Number of launches of a table's intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hpcdl.analysis.scaling import Record


def is_one_launch(records: Iterable[Record]) -> bool:
    """Return whether any of the measured records has one launch only."""
    return any(record.get("launches") == 1 and not record.get("network") for record in records)


def one_launch(records: Iterable[Record]) -> list[str]:
    """Return the note of a table with intervals within one launch; nothing for others."""
    if not is_one_launch(records):
        return []
    return ["One launch: intervals are over its repetitions. How much launches vary is unknown; use --launches 5."]
