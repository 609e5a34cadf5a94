"""1-bit SGD: one bit per entry and two values per column of a weight matrix (Seide et al. 2014)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from hpcdl.compression.parts.protocol import Compression
from hpcdl.compression.parts.segments import rows
from hpcdl.compression.parts.two_values import TwoValues

if TYPE_CHECKING:
    from hpcdl.compression.parts.protocol import Layout
    from hpcdl.fabric.comm import Array

TRAITS: Final = Compression(both_ways=True, on_device=True, title="Seide 2014")


class OneBit(TwoValues):
    """One bit per entry: below zero or not; two values per column: the means of those entries.

    A column of the paper's matrices (W^T v) has all weights of one output, as a row has here; a convolution's
    kernel counts as a column, and a vector as one. A message has both values of each column, or of its part within
    the span, then the bits. A server quantises the sum again, with a residual of its own.
    """

    def __init__(self, layout: Layout) -> None:
        super().__init__(rows(layout), layout, 2, _means)


def _means(totals: Array, lengths: Array) -> Array:
    """Return the means of negative and of other entries of each segment, (segments, 2)."""
    counts = np.stack([totals[:, 2], lengths - totals[:, 2]], axis=1)
    means: Array = totals[:, :2] / np.maximum(counts, 1)
    return means
