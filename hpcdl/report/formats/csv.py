"""Tidy CSV: one row per case and seed, the contract's field names as the header."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Final

from hpcdl.report.formats.cells import visible
from hpcdl.report.run.rows import rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.report.run.findings import Findings


FORMULA: Final = ("=", "+", "-", "@")
"""First characters of a formula."""


def render(findings: Sequence[Findings]) -> str:
    """Return SI units in full precision; an unknown value is an empty cell."""
    cells = [
        {_text(name): _text(value) if isinstance(value, str) else value for name, value in row.items()}
        for run in rows(findings)
        for row in run.records
    ]
    stream = io.StringIO()
    columns = list(dict.fromkeys(column for row in cells for column in row))
    writer = csv.DictWriter(stream, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(cells)
    return stream.getvalue()


def _text(value: str) -> str:
    """Return text that no spreadsheet takes for a formula: one that could be begins with an apostrophe."""
    text = visible(value)
    return f"'{text}" if text.startswith(FORMULA) else text
