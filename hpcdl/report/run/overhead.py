"""Cells of a table that compares a program with and without something that costs time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hpcdl.report.formats.cells import NONE, digits, interval, seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpcdl.analysis.run.overhead import Overhead
    from hpcdl.analysis.statistics.estimates import Interval
    from hpcdl.report.formats.cells import Number


def is_noise(one: Overhead) -> bool:
    """Return whether the difference is not above zero: its interval holds 0, or it is negative."""
    return one.difference.value <= 0 or one.difference.low <= 0


def cells(one: Overhead) -> tuple[str, ...]:
    """Return both times, their difference and their ratio, with intervals."""
    return (
        seconds(one.without.value),
        seconds(one.having.value),
        "within noise" if is_noise(one) else seconds(one.difference.value),
        _bounds(one.difference, seconds),
        digits(one.ratio.value),
        _bounds(one.ratio, digits),
    )


def _bounds(found: Interval, shown: Callable[[Number], str]) -> str:
    return interval(found.low, found.high, shown) if math.isfinite(found.low) else NONE
