"""Trend of a sequence of runs; a baseline must not have one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hpcdl.analysis.student import beyond

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.analysis.series import RunSeries


class Drift(NamedTuple):
    """Linear trend of the logarithms, averaged over all measures that every run has."""

    ratio: float
    """From the first run to the last; above 1: they became slower."""
    p: float
    """Of the slope, two-sided, by Student's t."""
    runs: int


def drift(runs: Sequence[RunSeries]) -> Drift | None:
    """Return the trend of the runs in the order of their dates; None for fewer than four or no common case."""
    if len(runs) < 4:
        return None
    ordered = sorted(runs, key=lambda run: run.date)
    tables = [
        {
            (case.suite, case.case, name): value
            for case in run.cases
            if not case.failure
            for name, value in case.values.items()
        }
        for run in ordered
    ]
    shared = [key for key in tables[0] if all(key in table for table in tables)]
    if not shared:
        return None
    means = np.log([[table[key] for key in shared] for table in tables]).mean(axis=1)
    n = len(means)
    time = np.arange(n) - (n - 1) / 2
    slope = float(time @ means / (time @ time))
    rest = means - means.mean() - slope * time
    error = math.sqrt(float(rest @ rest) / (n - 2) / float(time @ time))
    t = abs(slope) / error if error else math.inf if slope else 0.0
    return Drift(math.exp(slope * (n - 1)), 2 * float(beyond(np.array(t), np.array(n - 2.0))), n)
