"""Effects that all series of a run share: the job's placement, temperature, other load."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

LEVEL: Final = 20
"""Runs whose median is the level of a series."""
SERIES: Final = 20
"""Series by which the effect of a run is known, at least."""
LIMIT: Final = 2.5
"""Robust standard deviations of earlier effects beyond which an effect may be a change of all series."""


def without_job_effects(logs: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return ``logs`` (series, runs) less the effect of each run, known from the runs up to it.

    The effect is the median over series of the departures from their levels. An unusually large one may be a
    change of most series: it is kept. So no change of more than :data:`LIMIT` usual effects is lost.
    """
    found = logs.copy()
    effects: list[float] = []
    for run in range(1, logs.shape[1]):
        window = logs[:, max(0, run - LEVEL) : run]
        known = np.isfinite(logs[:, run]) & np.isfinite(window).any(axis=1)
        if known.sum() < SERIES:
            continue
        effect = float(np.median(logs[known, run] - np.nanmedian(window[known], axis=1)))
        if len(effects) >= LEVEL // 2:
            recent = np.array(effects[-LEVEL:])
            usual = float(np.median(recent))
            deviation = 1.4826 * float(np.median(np.abs(recent - usual)))
            if abs(effect - usual) <= LIMIT * deviation:
                found[:, run] -= effect
        effects.append(effect)
    return found
