"""Exchanges between pairs of ranks: times by size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdl.report.formats.cells import interval, rate, seconds, volume
from hpcdl.report.formats.document import Section, Table
from hpcdl.report.run.contents import Declaration
from hpcdl.report.run.method_names import scheme_name
from hpcdl.report.run.operations import CHECKED, grouped
from hpcdl.report.sections.collectives import one_launch

if TYPE_CHECKING:
    from hpcdl.report.run.findings import Findings


def page(findings: Findings) -> Section:
    """Return one table per group of comparable exchanges."""
    groups = grouped(findings.records, "pairwise")
    header = ("size", "program", "p50", "95 %", "p99", "max", "algbw", "correct")
    tables = [
        Table(
            group.title,
            header,
            [
                (
                    volume(record["message_bytes"]),
                    scheme_name(record),
                    seconds(record["time_p50_seconds"]),
                    interval(record["time_p50_low_seconds"], record["time_p50_high_seconds"], seconds),
                    seconds(record["time_p99_seconds"]),
                    seconds(record["time_max_seconds"]),
                    rate(record["algbw_bytes_per_second"]),
                    CHECKED[record["correct"]],
                )
                for record in rows
            ],
            2,
        )
        for group, rows in groups.items()
    ]
    found = [record for rows in groups.values() for record in rows]
    return Section("Pairwise exchange", one_launch(found), tables=tables)


def terminal(found: Findings) -> Section:
    """Return the same tables without intervals."""
    return page(found).brief("95 %", "max")


SECTION = Declaration(120, page, terminal)
