"""Correlation of successive runs: how much less their mean says than that of independent ones."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float64]
Vector = npt.NDArray[np.float64]

MAX: Final = 0.95
"""Largest estimate: a correlation of 1 leaves no evidence at all."""


def autocorrelation(values: Matrix) -> float:
    """Return the lag-1 correlation that all series have in common, 0 to :data:`MAX`; 0 without pairs of runs.

    ``values``: (series, runs), NaN if missing, each series about one level. By the signs of the departures from
    the median (quadrant correlation: Blomqvist, Ann. Math. Stat. 21, 1950), so that outliers do not matter. An
    estimated level makes it too small by (1 + 3 phi) / runs (Kendall, Biometrika 41, 1954). Less one standard
    error, so that few runs of few series count as independent.
    """
    signs = np.nan_to_num(np.sign(values - quantiles(values)[:, None]))
    products = signs[:, 1:] * signs[:, :-1]
    known = np.isfinite(values[:, 1:]) & np.isfinite(values[:, :-1])
    pairs = np.count_nonzero(known)
    if not pairs:
        return 0.0
    certain = max(float(products.sum()) / pairs - 1 / math.sqrt(pairs), 0)
    phi = math.sin(math.pi / 2 * certain)
    runs = max(pairs / np.count_nonzero(known.any(axis=1)), 4.0)
    return float(np.clip((phi + 1 / runs) / (1 - 3 / runs), 0, MAX))


def variance_of_mean(phi: float, count: npt.NDArray[np.int64]) -> Vector:
    """Return the variance of means of ``count`` successive values of variance 1 with lag-1 correlation ``phi``.

    Of an autoregressive process of first order; infinity for no value.
    """
    n = np.maximum(count, 1)
    inflation = (1 + phi) / (1 - phi) - 2 * phi * (1 - phi**n) / (n * (1 - phi) ** 2)
    return np.where(count > 0, inflation / n, np.inf)


def quantiles(values: Matrix, share: float = 0.5) -> Vector:
    """Return the quantile of the known values of each row; NaN for a row without."""
    last = np.maximum(np.isfinite(values).sum(axis=1) - 1, 0)
    ordered = np.sort(values, axis=1)  # NaN last
    row, place = np.arange(len(values)), share * last
    low, part = place.astype(np.int64), place % 1
    return np.asarray(ordered[row, low] * (1 - part) + ordered[row, np.minimum(low + 1, last)] * part, np.float64)
