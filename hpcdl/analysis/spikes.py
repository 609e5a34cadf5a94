"""Spike filter: values that depart from the values before them and from those after them.

After Hampel (J. Am. Stat. Assoc. 69, 1974), with one median per side: the first value of a shift departs from one
side only, and stays.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

LIMIT: Final = 4.0
"""Robust standard deviations by which a spike departs from both sides."""
NEIGHBOURS: Final = 3
"""Values on each side."""

_MAD: Final = 1.4826 / np.sqrt(2)
"""Standard deviation of normal values by the median of the absolute differences of successive ones."""


def robust_deviation(values: npt.NDArray[np.float64]) -> float:
    """Return the standard deviation of normal values about a level that may change, by successive differences."""
    return float(_MAD * np.median(np.abs(np.diff(values))))


class Spikes:
    """Mask of the spikes of many series, kept up to date as values are added."""

    def __init__(self, values: npt.NDArray[np.float64], window: int) -> None:
        """``values``: (series, window + values), the first ``window`` places empty."""
        self.mask = np.zeros(values.shape, np.bool_)
        self._values = values
        self._window = window

    def update(
        self, rows: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], begins: npt.NDArray[np.int64]
    ) -> None:
        """Judge the last values of the series ``rows``, each of which has ``ends`` values now.

        A value is judged again with each of the next :data:`NEIGHBOURS` values. The newest is never a spike, nor
        is the value ``begins``, the first after a change. Values before it say nothing of those after.
        """
        window = self._values[rows[:, None], ends[:, None] + np.arange(self._window)]
        with np.errstate(invalid="ignore"):
            limit = LIMIT * _MAD * _medians(np.abs(np.diff(window, axis=1)))
            for back in range(2, NEIGHBOURS + 2):  # the last but one, the one before, ...
                place = self._window - back
                value = window[:, place]
                before = ends[:, None] - self._window + np.arange(place - NEIGHBOURS, place)
                level = np.where(before >= begins[:, None], window[:, place - NEIGHBOURS : place], np.nan)
                left = value - _medians(level)
                right = value - _medians(window[:, place + 1 : place + 1 + NEIGHBOURS])
                departs = np.minimum(np.abs(left), np.abs(right)) > limit
                self.mask[rows, ends + place] = departs & (left * right > 0)


def _medians(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """(rows,): medians of the known values of each row; NaN for a row without."""
    count = np.isfinite(values).sum(axis=1)
    ordered = np.sort(values, axis=1)  # NaN last
    row = np.arange(len(values))
    low, high = np.maximum(count - 1, 0) // 2, count // 2
    return np.asarray((ordered[row, low] + ordered[row, np.minimum(high, values.shape[1] - 1)]) / 2, np.float64)
