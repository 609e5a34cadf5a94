"""Slow drift, which change points do not see: a floor below the speed at the beginning of a level."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from hpcdl.analysis.change_points import BEFORE

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from hpcdl.analysis.change_points import Change

SLOWER: Final = 0.1
"""Share by which the median of the last values exceeds that of the first."""
LAST: Final = 5
"""Values that are the last."""


@dataclass(frozen=True)
class Drift:
    """Series that became slower without a step."""

    series: int
    first: int
    """First run of the level that drifted."""
    found: int
    """Run that crossed the floor."""
    ratio: float
    """Median of the newest values by that of the first ones."""


def drifts(logs: npt.NDArray[np.float64], changes: Sequence[Change]) -> list[Drift]:
    """Return the drifts in ``logs`` (series, runs), each within the runs between two changes of a series."""
    found = []
    for row, values in enumerate(logs):
        cuts = sorted(one.first for one in changes if one.series == row)
        for begin, end in zip([0, *cuts], [*cuts, len(values)], strict=True):
            runs = begin + np.flatnonzero(np.isfinite(values[begin:end]))
            if len(runs) < BEFORE + LAST:
                continue
            level = values[runs]
            limit = float(np.median(level[:BEFORE])) + math.log1p(SLOWER)
            windows = np.lib.stride_tricks.sliding_window_view(level[BEFORE:], LAST)
            crossed = np.flatnonzero(np.median(windows, axis=1) > limit)
            if len(crossed):
                ratio = math.exp(float(np.median(level[-LAST:]) - np.median(level[:BEFORE])))
                found.append(Drift(row, int(runs[0]), int(runs[BEFORE + LAST - 1 + crossed[0]]), ratio))
    return found
