"""Tidy CSV: one row per case and seed, the contract's field names as the header."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

from hpcdl.analysis.fields import CONTRACT
from hpcdl.analysis.scaling import records

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.trace.run import Run


def render(runs: Sequence[Run]) -> str:
    """SI units, full precision; an unknown value is an empty cell."""
    rows = [record for run in runs for record in records(run)]
    stream = io.StringIO()
    names = list(dict.fromkeys([*CONTRACT, *(name for row in rows for name in row)]))
    writer = csv.DictWriter(stream, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()
