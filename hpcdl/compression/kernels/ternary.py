"""Random ternary levels -1, 0 and +1, two bits each, times one scaler per segment of the vector."""

import numpy as np

from hpcdl.compiled import njit
from hpcdl.compression.kernels.reproducible import (
    BLOCK,
    CHUNK,
    LANES,
    UNIT,
    draw,
    pack_pairs,
    piece,
    total,
    unpack_pairs,
)
from hpcdl.fabric.comm import Array


@njit(nogil=True, cache=True)
def moments(vector: Array, cuts: Array, totals: Array) -> None:
    """Write each segment's sum of squares and largest magnitude to ``totals`` (segments, 2) float64.

    A sum is infinite or not a number if an entry is.
    """
    squares, largest = np.empty(LANES), np.empty(LANES)
    for s in range(len(cuts) - 1):
        totals[s] = 0
        for begin in range(cuts[s], cuts[s + 1], CHUNK):
            end = min(begin + CHUNK, cuts[s + 1])
            used = min(LANES, end - begin)
            squares[:used], largest[:used] = 0, 0
            for first in range(begin, end, LANES):
                part = vector[first : min(first + LANES, end)]
                for i in range(len(part)):
                    x = np.float64(abs(part[i]))
                    squares[i] += x * x
                    largest[i] = max(largest[i], x)
            totals[s, 0] += total(squares, used)
            totals[s, 1] = max(totals[s, 1], np.max(largest[:used]))


@njit(nogil=True, cache=True)
def join(moments: Array, firsts: Array, totals: Array) -> None:
    """Write the moments of segments to ``totals`` (segments, 2), of those of their chunks (chunks, 2).

    ``firsts`` (segments + 1,): first chunk of each segment.
    """
    totals[:] = 0
    for s in range(len(firsts) - 1):
        for c in range(firsts[s], firsts[s + 1]):
            totals[s, 0] += moments[c, 0]
            totals[s, 1] = max(totals[s, 1], moments[c, 1])


@njit(nogil=True, cache=True)
def encode(vector: Array, cuts: Array, scalers: Array, packed: Array, stream: np.uint64, position: int) -> None:
    """Write codes (0, 1 for +, 2 for -) to ``packed`` and subtract what they stand for from ``vector``.

    An entry is +-scaler with the probability of its magnitude by the scaler, at most 1, and zero otherwise.
    ``position``: of the first entry in the whole gradient.
    """
    zero = vector.dtype.type(0)
    codes = np.zeros(BLOCK, np.uint8)
    words = np.empty(BLOCK // 2 + 1, np.uint64)
    s = 0
    for start in range(0, len(vector), BLOCK):
        stop = min(start + BLOCK, len(vector))
        draw(words, stream, (position + start) >> 1)
        # A word has the draws of two neighbouring positions, so that an odd start skips the first.
        draws = words.view(np.uint32)[(position + start) & 1 :]
        at = start
        while at < stop:
            s, end = piece(cuts, s, at, stop)
            scaler = scalers[s]
            unit = scaler * UNIT
            part, code, dice = vector[at:end], codes[at - start : end - start], draws[at - start : end - start]
            for i in range(len(part)):
                x = part[i]
                sent = dice[i] * unit < abs(x)
                negative = x < zero
                code[i] = np.uint8(sent) << np.uint8(negative)
                part[i] = x - ((-scaler if negative else scaler) if sent else zero)
            at = end
        codes[stop - start : (stop - start + 7) & ~7] = 0
        pack_pairs(codes, packed[start >> 2 : (stop + 3) >> 2])


@njit(nogil=True, cache=True)
def decode(packed: Array, cuts: Array, scalers: Array, into: Array) -> None:
    """Add the value of each entry to ``into``."""
    codes = np.zeros(BLOCK, np.uint8)
    s = 0
    for start in range(0, len(into), BLOCK):
        stop = min(start + BLOCK, len(into))
        unpack_pairs(packed[start >> 2 : (stop + 3) >> 2], codes)
        at = start
        while at < stop:
            s, end = piece(cuts, s, at, stop)
            scaler = scalers[s]
            part, code = into[at:end], codes[at - start : end - start]
            for i in range(len(part)):
                part[i] += scaler * (np.int8(code[i] & 1) - np.int8(code[i] >> 1))
            at = end
