"""What a slow rank costs each method."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hpcdl.report.document import Section, Table
from hpcdl.report.names import Names
from hpcdl.report.quantities import NONE, digits, interval

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.analysis.stragglers import Slowed

NOTE = (
    "Throughput with the straggler by throughput without it, all measured images by the time they took. If every "
    "step waits: what is left where all wait for the straggler in every step, from the share of the step in which "
    "ranks work. If nobody waits: what is left where only the straggler itself is slower."
)


def stragglers(found: Sequence[Slowed]) -> Section:
    """One row per method, scale and straggler; none where no case differs in its straggler only."""
    names = Names(one.fields for one in found)
    header = (
        *("method", "straggler", "ranks", "images/s without", "with", "with / without", "95 %"),
        *("if every step waits", "if nobody waits"),
    )
    rows = [
        (
            names(one.fields),
            str(one.fields["straggler"]),
            str(one.fields.get("ranks")),
            digits(one.without),
            digits(one.having),
            digits(one.ratio.value),
            interval(one.ratio.low, one.ratio.high) if math.isfinite(one.ratio.low) else NONE,
            digits(one.waiting),
            digits(one.free),
        )
        for one in found
    ]
    table = Table("", header, rows, 2, [NOTE])
    return Section("Stragglers", tables=[table.without_empty()] if rows else [])
