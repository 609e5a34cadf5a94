"""Efficiency split into load balance and communication efficiency."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdl.report.figures.efficiency_split import step_breakdown, steps_by_rank
from hpcdl.report.formats.cells import digits, seconds
from hpcdl.report.formats.document import Section, Table
from hpcdl.report.run.contents import Declaration
from hpcdl.report.run.grouping import rows

if TYPE_CHECKING:
    from hpcdl.report.run.findings import Findings


def page(found: Findings) -> Section:
    """Return one table per problem."""
    tables = []
    header = ("method", "ranks", "step", "compute", "load balance", "communication efficiency", "product")
    for methods in found.problems:
        cells = [
            (
                row.name,
                str(row.scale["ranks"]),
                seconds(row.step_seconds),
                seconds(row.scale.median("compute_seconds")),
                digits(balance),
                digits(communication),
                digits(balance * communication),
            )
            for row in rows(methods)
            if (balance := row.scale.median("load_balance")) is not None
            and (communication := row.scale.median("communication_efficiency")) is not None
        ]
        if cells:
            tables.append(Table(found.settings.title(methods[0].scales[0].records[0]), header, cells))
    note = (
        "Load balance: mean over ranks of the compute time, by that of the slowest rank. Communication: "
        "compute time of the slowest rank by the step time. The product is the share of the step in which "
        "the ranks compute."
    )
    return Section("Efficiency split", [note] if tables else [], tables=tables)


SECTION = Declaration(80, page, figures=(step_breakdown, steps_by_rank))
