"""Compute time by rank and step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from hpcdl.analysis.run.launches import warmup_of
from hpcdl.report.formats.cells import plural, seconds
from hpcdl.report.formats.charts import Axis, Bars, HeatMap
from hpcdl.report.run.grouping import rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    import numpy.typing as npt

    from hpcdl.report.run.findings import Findings
    from hpcdl.report.run.grouping import Row


MAX_RANKS: Final = 16
"""Bars of a chart, at most."""
PARTS: Final = ("compute", "input", "waiting", "transfer", "rest")
"""Parts of a bar; those that no bar has are left out."""
BREAKDOWN_NOTE: Final = (
    "Means over ranks, except input, which is of the rank that waits longest for its images. Waiting: a message "
    "has not begun on another rank. Transfer: bytes move. Both count only while the rank does not compute, so "
    "that overlapped communication is in neither. Rest: the remainder of the step; without messages in the trace "
    "all communication and waiting."
)


def step_breakdown(findings: Findings) -> list[Bars]:
    """Return one chart per problem: one rank, and each method at its largest number of ranks."""
    made = []
    for methods in findings.problems:
        known = [row for row in rows(methods) if row.step_seconds and row.scale.median("compute_seconds")]
        largest = max((row.scale["ranks"] for row in known), default=0)
        shown = [row for row in known if row.scale["ranks"] in {1, largest}]
        shown.sort(key=lambda row: (row.scale["ranks"], not row.is_ceiling, row.step_seconds))
        if any(row.scale["ranks"] > 1 for row in shown):
            title = findings.settings.title(methods[0].scales[0].records[0])
            made.append(_breakdown_chart(shown[:MAX_RANKS], title, len(shown)))
    return made


def _breakdown_chart(shown: Sequence[Row], title: str, every: int) -> Bars:
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
        BREAKDOWN_NOTE + rest,
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


RANKS: Final = 32
STEPS: Final = 24
"""Most rows and columns; more ranks or steps share one."""
RANKS_NOTE: Final = (
    "The case whose ranks differ most in their compute time. A cell is the longest compute time of its ranks and "
    "steps. Warm-up steps are left out."
)


def steps_by_rank(findings: Findings) -> list[HeatMap]:
    """Return one chart per problem with several ranks: the case with the lowest load balance."""
    made = []
    for methods in findings.problems:
        known = [
            (record["load_balance"], -record["ranks"], number, record)
            for number, record in enumerate(
                record for method in methods for scale in method.scales for record in scale.records
            )
            if record.get("load_balance") is not None and record["ranks"] > 1 and not record.get("network")
        ]
        if known and (chart := _ranks_chart(min(known)[-1], findings)):
            made.append(chart)
    return made


def _ranks_chart(record: Mapping[str, Any], findings: Findings) -> HeatMap | None:
    same = ("case", "ranks", "seed")
    places = [
        index
        for index, fields in enumerate(findings.run.described)
        if all(fields.get(name) == record.get(name) for name in same)
    ]
    if not places:
        return None
    steps = findings.run.steps
    mine = steps[(steps["case_index"] == places[0]) & (steps["step"] >= warmup_of(record))]
    rank, step = mine["rank"].to_numpy(np.int64), mine["step"].to_numpy(np.int64)
    if not len(rank):
        return None
    values, rows, columns = binned(rank, step, mine["compute_ns"].to_numpy(np.float64) * 1e-9)
    return HeatMap(
        f"Compute time by rank and step: {record.get('case')}",
        rows,
        columns,
        "rank",
        "step",
        values,
        Axis("compute time", seconds),
        RANKS_NOTE,
    )


def binned(
    rank: npt.NDArray[np.int64], step: npt.NDArray[np.int64], value: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], list[str], list[str]]:
    """Return the largest value of each cell and the labels of both axes; :data:`RANKS` x :data:`STEPS` at most."""
    row, rows = _places(rank, RANKS)
    column, columns = _places(step, STEPS)
    full = np.full((len(rows), len(columns)), np.nan)
    np.fmax.at(full, (row, column), value)
    return full, rows, columns


def _places(number: npt.NDArray[np.int64], most: int) -> tuple[npt.NDArray[np.int64], list[str]]:
    """Return the bin of each number, and the first and last number of each bin as text."""
    every, place = np.unique(number, return_inverse=True)
    width = -(-len(every) // most)
    parts = [every[begin : begin + width] for begin in range(0, len(every), width)]
    return place // width, [f"{part[0]}" if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts]
