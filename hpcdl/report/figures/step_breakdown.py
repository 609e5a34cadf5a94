"""Step time, split into computing, waiting for input, and the rest: communication that is not overlapped."""

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
NOTE: Final = (
    "Medians. Compute and input are of the rank that takes longest; the rest of the step is communication that no "
    "computing overlaps, and waiting for other ranks."
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
    parts: dict[str, list[float]] = {"compute": [], "input": [], "communication and waiting": []}
    for row in shown:
        step = row.step_seconds or 0.0
        waited = row.scale.median("input_seconds") or 0.0
        computed = min(step, row.scale.median("compute_seconds") or 0.0)
        lengths = (max(0.0, computed - waited), min(waited, computed), step - computed)
        for part, length in zip(parts.values(), lengths, strict=True):
            part.append(length)
    if not any(parts["input"]):
        del parts["input"]
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
