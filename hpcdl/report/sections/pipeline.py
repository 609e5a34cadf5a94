"""Bubble and activation memory of pipelines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdl.report.formats.cells import digits, volume
from hpcdl.report.formats.document import Section, Table
from hpcdl.report.run.contents import Declaration
from hpcdl.report.run.grouping import rows
from hpcdl.training.parts.schedules import bubble_share

if TYPE_CHECKING:
    from hpcdl.report.run.findings import Findings
    from hpcdl.report.run.grouping import Row


def page(found: Findings) -> Section:
    """Return one table per problem with pipelines."""
    header = (
        *("method", "ranks", "stages", "microbatches", "bubble", "of these stages", "(S-1)/(M+S-1)"),
        *("mean/longest stage", "activations", "vectors"),
    )
    tables = []
    for methods in found.problems:
        cells = [_row(row) for row in rows(methods) if row.scale["stages"]]
        if cells:
            title = found.settings.title(methods[0].scales[0].records[0])
            tables.append(Table(title, header, cells).without_empty())
    note = (
        "Bubble: share of a step in which a rank does not compute, mean over ranks. Of these stages: bubble of "
        "S stages of these times and M microbatches without messages, 1 - M b/(M - 1 + S b), where b is the mean "
        "compute time of the stages by the longest; 1F1B may have less. (S-1)/(M+S-1): the bubble of equal stages "
        "(Huang et al. 2019). The rest is messages, sums of gradients and waiting. Activations: outputs of a "
        "stage's layers for all microbatches in flight, of the rank with most; vectors: parameters, gradients and "
        "optimizer state of the rank with most."
    )
    return Section("Pipelines", [note] if tables else [], tables=tables)


def _row(row: Row) -> tuple[str, ...]:
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


SECTION = Declaration(85, page)
