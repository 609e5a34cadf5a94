"""Parts of a step: figures of its time, waiting of pipelines, memory and consensus."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hpcdl.report.figures.efficiency_split import step_breakdown, steps_by_rank
from hpcdl.report.formats.cells import NONE, digits, volume
from hpcdl.report.formats.document import Section, Table
from hpcdl.report.run.contents import EVIDENCE, Declaration
from hpcdl.report.run.grouping import rows
from hpcdl.training.parts.schedules import bubble_share

if TYPE_CHECKING:
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


STEP: Final = Declaration(80, lambda _: Section("Time of a step"), figures=(step_breakdown, steps_by_rank))
