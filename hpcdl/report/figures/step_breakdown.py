"""Step time, split into compute, input, waiting for other ranks, transfer, and the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hpcdl.report.charts import Axis, Bars
from hpcdl.report.formatting import plural, seconds
from hpcdl.report.grouping import rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.report.findings import Findings
    from hpcdl.report.grouping import Row

MOST: Final = 16
"""Bars of a chart, at most."""
PARTS: Final = ("compute", "input", "waiting", "transfer", "rest")
"""Parts of a bar; those that no bar has are left out."""
NOTE: Final = (
    "Means over ranks, except input, which is of the rank that waits longest for its images. Waiting: a message "
    "has not begun on another rank. Transfer: bytes move. Both count only while the rank does not compute, so "
    "that overlapped communication is in neither. Rest: the remainder of the step; without messages in the trace "
    "all communication and waiting."
)


def charts(found: Findings) -> list[Bars]:
    """Return one chart per problem: one rank, and each method at its largest number of ranks."""
    made = []
    for methods in found.problems:
        known = [row for row in rows(methods) if row.step_seconds and row.scale.median("compute_seconds")]
        largest = max((row.scale["ranks"] for row in known), default=0)
        shown = [row for row in known if row.scale["ranks"] in {1, largest}]
        shown.sort(key=lambda row: (row.scale["ranks"], not row.is_ceiling, row.step_seconds))
        if any(row.scale["ranks"] > 1 for row in shown):
            title = found.settings.title(methods[0].scales[0].records[0])
            made.append(_chart(shown[:MOST], title, len(shown)))
    return made


def _chart(shown: Sequence[Row], title: str, every: int) -> Bars:
    split = [_split(row) for row in shown]
    parts = {name: lengths for name, *lengths in zip(PARTS, *split, strict=True) if any(lengths)}
    labels = [
        row.name if row.scale["ranks"] == 1 else f"{row.name}, {plural(row.scale['ranks'], 'rank')}"
        for row in shown
    ]
    rest = f" The fastest {len(shown)} of {every}." if every > len(shown) else ""
    return Bars(
        f"Where a step's time goes{': ' if title else ''}{title}",
        labels,
        parts,
        Axis("step", seconds),
        NOTE + rest,
    )


def _split(row: Row) -> tuple[float, ...]:
    """Return the lengths of :data:`PARTS` (s); together they are the step."""
    step, scale = row.step_seconds or 0.0, row.scale
    computed = (scale.median("compute_seconds") or 0.0) * (scale.median("load_balance") or 1.0)
    left, lengths = step, []
    for length in (computed, scale.median("waiting_seconds"), scale.median("transfer_seconds")):
        lengths.append(min(left, length or 0.0))
        left -= lengths[-1]
    compute, waiting, transfer = lengths
    images = min(compute, scale.median("input_seconds") or 0.0)
    return compute - images, images, waiting, transfer, left
