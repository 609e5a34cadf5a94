"""Random levels: -1, 0 and +1 times one scaler per segment, two bits each; or more levels of the norm of a bucket.

The symbol of an entry of a bucket is 0 for level 0, else 2 x level - 1, one more if it is negative.
"""

from typing import Final

import numpy as np

from hpcdl.compiled import njit
from hpcdl.compression.kernels import reproducible
from hpcdl.compression.kernels.reproducible import BLOCK, CHUNK, LANES, UNIT, draw, piece, total
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
        reproducible.pack_pairs(codes, packed[start >> 2 : (stop + 3) >> 2])


@njit(nogil=True, cache=True)
def decode(packed: Array, cuts: Array, scalers: Array, into: Array) -> None:
    """Add the value of each entry to ``into``."""
    codes = np.zeros(BLOCK, np.uint8)
    s = 0
    for start in range(0, len(into), BLOCK):
        stop = min(start + BLOCK, len(into))
        reproducible.unpack_pairs(packed[start >> 2 : (stop + 3) >> 2], codes)
        at = start
        while at < stop:
            s, end = piece(cuts, s, at, stop)
            scaler = scalers[s]
            part, code = into[at:end], codes[at - start : end - start]
            for i in range(len(part)):
                part[i] += scaler * (np.int8(code[i] & 1) - np.int8(code[i] >> 1))
            at = end


SMALLEST: Final = 1e-140
"""Norms below count as zero: squares of their entries underflow."""


@njit(nogil=True, cache=True)
def quantise(
    vector: Array, bucket: int, levels: int, norms: Array, symbols: Array, stream: np.uint64, position: int
) -> bool:
    """Write symbols and norms of buckets; subtract what they stand for from ``vector``.

    ``position``: of the first entry in the whole gradient. Return False if a norm is not finite.
    """
    lanes, random = np.empty(LANES), np.empty(bucket // 2 + 1, np.uint64)
    for b in range(len(norms)):
        start = b * bucket
        part = vector[start : start + bucket]
        norms[b] = np.sqrt(_squares(part, lanes))
        norm = np.float64(norms[b])
        if not np.isfinite(norm):
            return False
        if norm < SMALLEST:
            norms[b] = norm = np.float64(0)
        draw(random, stream, (position + start) >> 1)
        draws = random.view(np.uint32)[(position + start) & 1 :]
        inverse, unit = levels / norm if norm > 0.0 else 0.0, norm / levels
        most, numbers = np.int32(levels), symbols[start : start + bucket]
        for i in range(len(part)):
            x = part[i]
            level = min(np.int32(np.float64(abs(x)) * inverse + draws[i] * UNIT), most)
            value = part.dtype.type(level * unit)
            negative = x < 0
            numbers[i] = 2 * level - 1 + negative if level else 0
            part[i] = x - (-value if negative else value)
    return True


@njit(nogil=True, cache=True)
def _squares(part: Array, lanes: Array) -> float:
    used = min(LANES, len(part))
    lanes[:used] = 0
    for first in range(0, len(part), LANES):
        few = part[first : min(first + LANES, len(part))]
        for i in range(len(few)):
            x = np.float64(few[i])
            lanes[i] += x * x
    return total(lanes, used)


@njit(nogil=True, cache=True)
def add_levels(symbols: Array, bucket: int, levels: int, norms: Array, into: Array) -> bool:
    """Add the value of each entry to ``into``; return False if a symbol is impossible."""
    valid = True
    for b in range(len(norms)):
        unit = np.float64(norms[b]) / levels
        most = np.uint32(2 * levels if norms[b] > 0 else 0)
        part, numbers = into[b * bucket : (b + 1) * bucket], symbols[b * bucket : (b + 1) * bucket]
        for i in range(len(part)):
            number = numbers[i]
            valid &= number <= most
            value = part.dtype.type(((number + 1) >> 1) * unit)
            part[i] += value if number & 1 else -value
    return valid
