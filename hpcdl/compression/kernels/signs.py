"""Signs of entries, one bit each; a set bit is -1."""

import numpy as np

from hpcdl.compiled import njit
from hpcdl.compression.kernels.reproducible import BLOCK, pack_bits, unpack_bits
from hpcdl.fabric.comm import Array


@njit(nogil=True, cache=True)
def encode(vector: Array, packed: Array, turn: int) -> bool:
    """Write the signs to ``packed`` and subtract them from ``vector``; return False if a value is not finite.

    A zero is -1 at odd positions if ``turn`` is 0, and at even positions if it is 1.
    """
    zero, unit = vector.dtype.type(0), vector.dtype.type(1)
    codes = np.zeros(BLOCK, np.uint8)
    finite = True
    for start in range(0, len(vector), BLOCK):
        piece = vector[start : start + BLOCK]
        bad = np.uint8(0)
        for i in range(len(piece)):
            x = piece[i]
            negative = (x < zero) | ((x == zero) & (((i ^ turn) & 1) != 0))
            codes[i] = negative
            bad |= np.uint8(x - x != zero)  # infinity or NaN
            piece[i] = x + unit if negative else x - unit
        finite = finite and not bad
        # bits behind the last entry are 0, which receivers check
        codes[len(piece) : (len(piece) + 7) & ~7] = 0
        pack_bits(codes, packed[start >> 3 : (start + len(piece) + 7) >> 3])
    return finite


@njit(nogil=True, cache=True)
def decode(packed: Array, into: Array) -> None:
    """Add the signs to ``into``."""
    unit = into.dtype.type(1)
    codes = np.zeros(BLOCK, np.uint8)
    for start in range(0, len(into), BLOCK):
        piece = into[start : start + BLOCK]
        unpack_bits(packed[start >> 3 : (start + len(piece) + 7) >> 3], codes)
        for i in range(len(piece)):
            piece[i] += -unit if codes[i] else unit
