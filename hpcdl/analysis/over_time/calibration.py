"""False alarms and power of the change points on an archive's own noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from hpcdl.analysis.over_time.change_points import BEFORE, change_points

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from hpcdl.analysis.over_time.change_points import Change


BLOCK: Final = 5
"""Runs that stay together, so that noise which lasts for some runs does so when shuffled."""
STEP: Final = 0.05
"""Step that is added to find out how many of such are found."""
WITHIN: Final = 12
"""Runs within which a step is found, or counts as missed."""
SERIES: Final = 10
"""Series with an added step per round, each at another run, at most."""


@dataclass(frozen=True)
class Calibration:
    """Results over all rounds."""

    rounds: int
    runs: int
    """Runs of one round."""
    regressed: float
    """Events per 100 runs without a change in which series became slower; false alarms."""
    improved: float
    """Events per 100 runs without a change in which series became faster."""
    found: float | None
    """Share of added steps that were found; None for an archive that is too short."""
    delay: float | None
    """Median over the added steps of the runs until one was found, itself included; infinite if most were not."""


def calibrate(
    logs: npt.NDArray[np.float64], changes: Sequence[Change], *, rounds: int = 10, seed: int = 0
) -> Calibration:
    """Shuffle blocks of the runs of ``logs`` (series, runs), without their ``changes``, and search them.

    All series have the same shuffle, so that common effects of a run stay together.
    """
    generator = np.random.default_rng(seed)
    residuals = _residuals(logs, changes)
    runs = logs.shape[1]
    false: list[set[tuple[int, bool]]] = []
    delays: list[float] = []
    for _ in range(rounds):
        blocks = np.array_split(np.arange(runs), max(1, runs // BLOCK))
        order = np.concatenate([blocks[block] for block in generator.permutation(len(blocks))])
        shuffled = residuals[:, order]
        false.append({(point.found, point.ratio.value > 1) for point in change_points(shuffled)})
        delays += _delays(shuffled, generator)
    slower = sum(sum(slower for _, slower in change) for change in false)
    faster = sum(map(len, false)) - slower
    scale = 100 / (rounds * runs)
    return Calibration(
        rounds,
        runs,
        slower * scale,
        faster * scale,
        float(np.mean(np.isfinite(delays))) if delays else None,
        float(np.median(delays)) if delays else None,
    )


def _residuals(logs: npt.NDArray[np.float64], changes: Sequence[Change]) -> npt.NDArray[np.float64]:
    """Return ``logs`` less the median of each series between two changes."""
    shuffled = logs.copy()
    for row in range(len(logs)):
        cuts = sorted(change.first for change in changes if change.series == row)
        for begin, end in zip([0, *cuts], [*cuts, logs.shape[1]], strict=True):
            level = shuffled[row, begin:end]
            if np.isfinite(level).any():
                level -= np.nanmedian(level)
    return shuffled


def _delays(logs: npt.NDArray[np.float64], generator: np.random.Generator) -> list[float]:
    """Return the runs until added steps were found; infinity for a step that was not."""
    stepped = logs.copy()
    steps = {}
    for row in generator.permutation(len(logs))[:SERIES]:
        runs = np.flatnonzero(np.isfinite(logs[row]))
        if len(runs) >= 2 * BEFORE + WITHIN:
            place = int(generator.integers(2 * BEFORE, len(runs) - WITHIN + 1))
            stepped[row, runs[place] :] += math.log1p(STEP)
            steps[int(row)] = runs[place : place + WITHIN]
    fromkeys: dict[int, float] = dict.fromkeys(steps, math.inf)
    for change in change_points(stepped) if steps else ():
        places = np.flatnonzero(steps.get(change.series, np.empty(0)) == change.found)
        if len(places) and change.ratio.value > 1:
            fromkeys[change.series] = min(fromkeys[change.series], float(places[0]) + 1)
    return list(fromkeys.values())
