"""Parts of a step: figures of its time, waiting of pipelines, memory and consensus."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from hpcdl.analysis.run.launches import warmup_of
from hpcdl.report.formats.cells import NONE, digits, plural, seconds, volume
from hpcdl.report.formats.charts import Axis, Bars, HeatMap
from hpcdl.report.formats.document import Section, Table
from hpcdl.report.run.contents import EVIDENCE, Declaration
from hpcdl.report.run.grouping import rows
from hpcdl.training.parts.schedules import bubble_share

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpcdl.report.run.findings import Findings
    from hpcdl.report.run.grouping import Row


def pipeline_page(findings: Findings) -> Section:
    """Return one table per problem with pipelines."""
    header = (
        *("method", "ranks", "stages", "microbatches", "bubble", "of these stages", "(S-1)/(M+S-1)"),
        *("mean/longest stage", "activations", "vectors"),
    )
    tables = []
    for methods in findings.problems:
        cells = [_pipeline_row(row) for row in rows(methods) if row.scale["stages"]]
        if cells:
            title = findings.settings.title(methods[0].scales[0].records[0])
            tables.append(Table(title, header, cells).without_empty())
    note = (
        "Bubble: share of a step in which a rank does not compute, mean over ranks. Of these stages: bubble of "
        "S stages of these times and M microbatches without messages, 1 - M b/(M - 1 + S b), where b is the mean "
        "compute time of the stages by the longest; 1F1B may have less. (S-1)/(M+S-1): the bubble of equal stages "
        "(Huang et al. 2019). The rest is messages, sums of gradients and waiting. Activations: outputs of a "
        "stage's layers for all microbatches in flight, of the rank with most; vectors: parameters, gradients and "
        "optimizer state of the rank with most."
    )
    return Section("Pipelines", [note] if tables else [], tables=tables, per="setting")


def _pipeline_row(row: Row) -> tuple[str, ...]:
    scale = row.scale
    stages, microbatches = int(scale["stages"]), int(scale["microbatches"])
    balance = scale.median("load_balance")
    return (
        row.name,
        str(scale["ranks"]),
        str(stages),
        str(microbatches),
        digits(scale.median("bubble_share")),
        digits(bubble_share(stages, microbatches, balance) if balance else None),
        digits(bubble_share(stages, microbatches)),
        digits(balance),
        volume(scale["activation_bytes_per_rank"]),
        volume(scale.median("memory_bytes_per_rank")),
    )


PIPELINE: Final = Declaration(85, pipeline_page)


BYTES: Final = {"float64": 8}
"""Of a parameter; below that precision they are kept in float32."""


def memory_page(findings: Findings) -> Section:
    """Return one table per problem; methods that are all alike have one row."""
    tables = []
    for methods in findings.problems:
        shown = [row for row in rows(methods) if row.scale["memory_bytes_per_rank"]]
        shown.sort(key=lambda row: -(row.scale.median("memory_bytes_per_rank") or 0))
        if not shown:
            continue
        cells = [_memory(row) for row in shown]
        if len(cells) > 1 and len({tuple(known) for _, _, *known in cells}) == 1:
            cells = [(f"all {len(cells)}", NONE, *cells[0][2:])]
        header = ("method", "ranks", "memory per rank", "of the parameters", "consensus distance")
        title = findings.settings.title(shown[0].scale.records[0])
        tables.append(Table(title, header, cells, order="most memory first").without_empty())
    note = (
        "Memory: vectors of the rank that holds most, also as a multiple of the parameters: parameters, "
        "gradients, what optimizer and strategy keep, and copies that wait for the test set, one for each look at "
        "it, where training does not wait for that. Consensus distance: root mean square over ranks of the "
        "distance of a rank's parameters from their average, at the last look at the test set."
    )
    return Section("Memory and consensus", [note] if tables else [], tables=tables, per="setting")


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


MEMORY_AND_CONSENSUS: Final = Declaration(90, memory_page, rows=EVIDENCE)


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


STEP: Final = Declaration(80, lambda _: Section("Time of a step"), figures=(step_breakdown, steps_by_rank))
