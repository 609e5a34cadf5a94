"""Rate of the link between each pair of ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from hpcdl.report.charts import Axis, HeatMap
from hpcdl.report.formatting import rate, seconds, volume

if TYPE_CHECKING:
    from hpcdl.analysis.links import Links
    from hpcdl.report.findings import Findings

MOST: Final = 48
"""Ranks of a map, at most; more share rows and columns."""
SMALL: Final = 4096
"""Bytes of messages, below which a map shows times instead of rates."""


def charts(found: Findings) -> list[HeatMap]:
    """Return one map per case in which all pairs exchanged."""
    return [
        _chart(one)
        for one in found.links
        if one.fields.get("pattern") == "all_pairs" and np.isfinite(one.seconds).any()
    ]


def _chart(one: Links) -> HeatMap:
    size = int(one.fields["message_bytes"])
    small = size < SMALL
    values = one.seconds if small else one.rates
    width = -(-len(values) // MOST)
    begins = range(0, len(values), width)
    worst = np.fmax if small else np.fmin
    if width > 1:
        values = np.asarray(worst.reduceat(worst.reduceat(values, begins, 0), begins, 1), np.float64)
    labels = [_label(one, begin, width) for begin in begins]
    several = f" Each cell is the worst of {width} x {width} links." if width > 1 else ""
    return HeatMap(
        f"Links: {len(one.seconds)} ranks, {volume(size)}",
        labels,
        labels,
        "rank",
        "rank",
        values,
        Axis("time of an exchange", seconds) if small else Axis("rate in each direction", rate),
        f"Median over repetitions of an exchange, both directions at once.{several}",
    )


def _label(one: Links, rank: int, width: int) -> str:
    if width > 1:
        return f"{rank}-{min(rank + width, len(one.seconds)) - 1}"
    return f"{rank} {one.hosts[rank]}" if len(set(one.hosts)) > 1 else str(rank)
