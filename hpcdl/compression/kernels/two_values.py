"""One bit per entry: signs alone, or two values per segment, for negative entries and for the others."""

import numpy as np

from hpcdl.compiled import njit
from hpcdl.compression.kernels.reproducible import BLOCK, CHUNK, LANES, pack_bits, piece, total, unpack_bits
from hpcdl.fabric.comm import Array


@njit(nogil=True, cache=True)
def sums(vector: Array, cuts: Array, totals: Array) -> None:
    """Write each segment's sum of negative entries, sum of the others and number of negative entries.

    ``cuts`` (segments + 1,): boundaries; ``totals`` (segments, 3) float64. A sum is infinite or not a number if an
    entry is.
    """
    zero = vector.dtype.type(0)
    below, above, count = np.empty(LANES), np.empty(LANES), np.empty(LANES)
    for s in range(len(cuts) - 1):
        totals[s] = 0
        for begin in range(cuts[s], cuts[s + 1], CHUNK):
            end = min(begin + CHUNK, cuts[s + 1])
            used = min(LANES, end - begin)
            below[:used], above[:used], count[:used] = 0, 0, 0
            for first in range(begin, end, LANES):
                part = vector[first : min(first + LANES, end)]
                for i in range(len(part)):
                    x = part[i]
                    negative = x < zero
                    below[i] += x if negative else zero
                    above[i] += zero if negative else x
                    count[i] += negative
            totals[s, 0] += total(below, used)
            totals[s, 1] += total(above, used)
            totals[s, 2] += total(count, used)


@njit(nogil=True, cache=True)
def encode(vector: Array, cuts: Array, values: Array, packed: Array) -> None:
    """Write one bit per entry, set for negative ones, and subtract the segment's value from ``vector``.

    ``values`` (segments, 2): value of negative entries and of the others.
    """
    zero = vector.dtype.type(0)
    codes = np.zeros(BLOCK, np.uint8)
    s = 0
    for start in range(0, len(vector), BLOCK):
        stop = min(start + BLOCK, len(vector))
        at = start
        while at < stop:
            s, end = piece(cuts, s, at, stop)
            low, high = values[s, 0], values[s, 1]
            part, code = vector[at:end], codes[at - start : end - start]
            for i in range(len(part)):
                x = part[i]
                negative = x < zero
                code[i] = negative
                part[i] = x - (low if negative else high)
            at = end
        codes[stop - start : (stop - start + 7) & ~7] = 0
        pack_bits(codes, packed[start >> 3 : (stop + 7) >> 3])


@njit(nogil=True, cache=True)
def decode(packed: Array, cuts: Array, values: Array, into: Array) -> None:
    """Add the value of each entry to ``into``."""
    codes = np.zeros(BLOCK, np.uint8)
    s = 0
    for start in range(0, len(into), BLOCK):
        stop = min(start + BLOCK, len(into))
        unpack_bits(packed[start >> 3 : (stop + 7) >> 3], codes)
        at = start
        while at < stop:
            s, end = piece(cuts, s, at, stop)
            low, high = values[s, 0], values[s, 1]
            part, code = into[at:end], codes[at - start : end - start]
            for i in range(len(part)):
                part[i] += low if code[i] else high
            at = end


@njit(nogil=True, cache=True)
def encode_signs(vector: Array, packed: Array, turn: int) -> bool:
    """Write the signs, a set bit for -1, and subtract them from ``vector``; return False if a value is not finite.

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
def decode_signs(packed: Array, into: Array) -> None:
    """Add the signs to ``into``."""
    unit = into.dtype.type(1)
    codes = np.zeros(BLOCK, np.uint8)
    for start in range(0, len(into), BLOCK):
        piece = into[start : start + BLOCK]
        unpack_bits(packed[start >> 3 : (start + len(piece) + 7) >> 3], codes)
        for i in range(len(piece)):
            piece[i] += -unit if codes[i] else unit
