"""Kernel that draws subsets."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from hpcdl.compression.kernels.bit_stream import trailing_zeros


@njit(nogil=True, cache=True)
def subset(found: Any, length: Any, seed: Any) -> None:
    """Fill ``found``, int32 (count,), with distinct positions below ``length``, rising."""
    count = len(found)
    inverse = 2 * count > length
    marks = np.zeros((length + 63) // 64, np.uint64)
    state, drawn = seed, 0
    while drawn < (length - count if inverse else count):
        state += np.uint64(0x9E3779B97F4A7C15)  # splitmix64 (Steele 2014)
        word = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        word ^= word >> np.uint64(31)
        position = ((word >> np.uint64(32)) * np.uint64(length)) >> np.uint64(32)
        at, bit = np.int64(position >> np.uint64(6)), np.uint64(1) << (position & np.uint64(63))
        if marks[at] & bit == np.uint64(0):
            marks[at] |= bit
            drawn += 1
    i = 0
    for block in range(len(marks)):
        word = ~marks[block] if inverse else marks[block]
        while word != np.uint64(0) and i < count:  # bits behind the end come last
            found[i] = 64 * block + np.int64(trailing_zeros(word))
            word &= word - np.uint64(1)
            i += 1
