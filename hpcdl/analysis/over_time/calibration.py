"""False alarms of the search for change points, on an archive's own noise."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from hpcdl.analysis.over_time.change_points import Change, change_points
from hpcdl.analysis.statistics.robust import Matrix

BLOCK: Final = 5
"""Runs that stay together, so that noise which lasts for some runs does so when shuffled."""


class Calibration(NamedTuple):
    """False alarms in shuffled runs."""

    rounds: int
    regressed: float
    """Events per 100 runs without a change in which series became slower."""
    improved: float
    """Events per 100 runs without a change in which series became faster."""


def calibrate(logs: Matrix, changes: Sequence[Change], *, rounds: int = 10, seed: int = 0) -> Calibration:
    """Shuffle blocks of the runs of ``logs`` (series, runs), without their ``changes``, and search them.

    All series have the same shuffle, so that common effects of a run stay together.
    """
    residuals, generator = logs.copy(), np.random.default_rng(seed)
    runs = logs.shape[1]
    for row in range(len(logs)):
        cuts = sorted(change.first for change in changes if change.series == row)
        for begin, end in zip([0, *cuts], [*cuts, runs], strict=True):
            level = residuals[row, begin:end]
            if np.isfinite(level).any():
                level -= np.nanmedian(level)
    blocks = np.array_split(np.arange(runs), max(1, runs // BLOCK))
    false = {True: 0, False: 0}
    for _ in range(rounds):
        order = np.concatenate([blocks[block] for block in generator.permutation(len(blocks))])
        for _, slower in {(change.found, change.ratio.value > 1) for change in change_points(residuals[:, order])}:
            false[slower] += 1
    scale = 100 / (rounds * runs)
    return Calibration(rounds, false[True] * scale, false[False] * scale)
