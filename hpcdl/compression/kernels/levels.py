"""Random levels of a vector's buckets in Elias's gamma code, and one norm per bucket.

Level l is coded as l + 1: as many zeros as it has bits after its first, a one, and those bits. A sign bit follows
unless l is zero. The first bit is the lowest of a byte.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numba import njit

from hpcdl.compression.kernels.draws import UNIT, draw
from hpcdl.compression.kernels.lanes import LANES, total

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array

MAX_LEVELS: Final = (1 << 14) - 2
"""Most levels of which two words, at most 28 bits each, fit a register beside 7 bits that wait."""
PEEK: Final = 12
"""Bits that the decoder looks up at once."""
FEW: Final = 4
"""Most symbols that it finds at once."""
SMALLEST: Final = 1e-140
"""Norms below count as zero: squares of their entries underflow."""

_0, _1, _3, _7, _8 = np.uint64(0), np.uint64(1), np.uint64(3), np.uint64(7), np.uint64(8)
_PEEKED: Final = np.uint64((1 << PEEK) - 1)


def words_of(levels: int) -> tuple[Array, Array]:
    """Return the words of symbols 2 x level + (1 if negative) and their bits, both uint64 (2 x levels + 2,)."""
    x = np.arange(1, levels + 2, dtype=np.uint64).repeat(2)
    n = np.floor(np.log2(x)).astype(np.uint64)
    sign = np.tile(np.array([0, 1], np.uint64), levels + 1) * (x > _1)
    words = ((_1 | (x ^ (_1 << n)) << _1) << n) | sign << (_1 + n + n)
    return words, _1 + n + n + (x > _1)


def lookup(words: Array, widths: Array) -> tuple[Array, Array, Array]:
    """Return the symbols that begin with each :data:`PEEK` bits, their number and their bits.

    Symbols: uint16 (:data:`FEW` per row). The number is 0 if the first symbol is longer.
    """
    symbols, counts, used = (
        np.zeros((1 << PEEK, FEW), np.uint16),
        np.zeros(1 << PEEK, int),
        np.zeros(1 << PEEK, int),
    )
    patterns = np.arange(1 << PEEK)
    ordered = [number for number in range(len(words)) if number != 1 and widths[number] <= PEEK]
    for place in range(FEW):
        open_ones = patterns[counts == place]
        for symbol in ordered:
            width = int(widths[symbol])
            begins = ((open_ones >> used[open_ones]) & ((1 << width) - 1)) == int(words[symbol])
            finished = open_ones[begins & (used[open_ones] + width <= PEEK)]
            symbols[finished, place] = symbol
            counts[finished] += 1
            used[finished] += width
            open_ones = open_ones[~np.isin(open_ones, finished)]
    return symbols, counts, used


@njit(nogil=True, cache=True)
def encode(
    vector: Array, bucket: int, code: Any, norms: Array, wire: Array, stream: np.uint64, position: int
) -> Any:
    """Write levels to ``wire`` and norms to ``norms``; subtract what they stand for from ``vector``.

    ``code``: :func:`words_of` the levels. ``position``: of the first entry in the whole gradient.
    Return the bytes, or -1 if a norm is not finite.
    """
    words, widths = code
    levels = len(words) // 2 - 1
    lanes, symbols = np.empty(LANES), np.zeros(bucket + 1, np.uint16)
    random, packed = np.empty(bucket // 2 + 1, np.uint64), np.empty(4 * bucket + 16, np.uint8)
    at, pending, filled = 0, _0, _0
    for b in range(len(norms)):
        start = b * bucket
        part = vector[start : start + bucket]
        norms[b] = np.sqrt(_squares(part, lanes))
        norm = np.float64(norms[b])
        if not np.isfinite(norm):
            return -1
        if norm < SMALLEST:
            norms[b] = norm = np.float64(0)
        draw(random, stream, (position + start) >> 1)
        draws = random.view(np.uint32)[(position + start) & 1 :]
        _quantise(part, norm, levels, draws, symbols)
        end: Any = 0
        for i in range(0, len(part), 2):
            first, second = symbols[i], symbols[i + 1]
            width = widths[first]
            pair = words[first]
            if i + 1 < len(part):
                pair |= words[second] << width
                width += widths[second]
            pending |= pair << filled
            filled += width
            for k in range(8):
                packed[end + k] = np.uint8(pending >> np.uint64(8 * k))
            end += np.int64(filled >> _3)
            pending >>= filled & ~_7
            filled &= _7
        wire[at : at + end] = packed[:end]
        at += end
    if filled > _0:
        wire[at] = np.uint8(pending)
        at += 1
    return at


@njit(nogil=True, cache=True)
def _squares(part: Array, lanes: Array) -> Any:
    used = min(LANES, len(part))
    lanes[:used] = 0
    for first in range(0, len(part), LANES):
        few = part[first : min(first + LANES, len(part))]
        for i in range(len(few)):
            x = np.float64(few[i])
            lanes[i] += x * x
    return total(lanes, used)


@njit(nogil=True, cache=True)
def _quantise(part: Array, norm: float, levels: int, draws: Array, symbols: Array) -> None:
    inverse, unit = levels / norm if norm > 0.0 else 0.0, norm / levels
    most = np.int32(levels)
    for i in range(len(part)):
        x = part[i]
        level = min(np.int32(np.float64(abs(x)) * inverse + draws[i] * UNIT), most)
        value = part.dtype.type(level * unit)
        negative = x < 0
        symbols[i] = 2 * level + negative
        part[i] = x - (-value if negative else value)


@njit(nogil=True, cache=True)
def decode(wire: Array, bucket: int, levels: int, table: Any, norms: Array, into: Array) -> bool:
    """Add the value of each entry to ``into``; return False if ``wire`` cannot have been encoded.

    ``table``: :func:`lookup` of the words. ``into`` then has no meaning.
    """
    rows, counts, bits = table
    symbols = np.empty(bucket + FEW, np.uint16)
    at, pending, filled, have = 0, _0, 0, 0
    for b in range(len(norms)):
        part = into[b * bucket : (b + 1) * bucket]
        while have < len(part):
            while filled <= 56 and at < len(wire):
                pending |= np.uint64(wire[at]) << np.uint64(filled)
                at += 1
                filled += 8
            peeked = np.int64(pending & _PEEKED)
            width, count = bits[peeked], counts[peeked]
            for k in range(FEW):
                symbols[have + k] = rows[peeked, k]
            if count == 0:
                symbols[have], width = _long(pending)
                count = 1
            have += count
            pending >>= np.uint64(width)
            filled -= width
            if filled < 0:
                return False
        if not _add(part, symbols, np.float64(norms[b]), levels):
            return False
        have -= len(part)
        for k in range(have):
            symbols[k] = symbols[len(part) + k]
    return have == 0 and at == len(wire) and filled < 8 and pending == _0


@njit(nogil=True, cache=True)
def _long(pending: np.uint64) -> Any:
    """Return the symbol of the word that ``pending`` begins with, and its bits: too many if there is none."""
    n = 0
    while n < 14 and not (pending >> np.uint64(n)) & _1:
        n += 1
    low = (pending >> np.uint64(n + 1)) & np.uint64((1 << n) - 1)
    negative = np.int64((pending >> np.uint64(2 * n + 1)) & _1)
    return 2 * (np.int64(low) + (1 << n) - 1) + negative, 2 * n + 2 if n < 14 else 2 * 64


@njit(nogil=True, cache=True)
def _add(part: Array, symbols: Array, norm: float, levels: int) -> bool:
    unit = norm / levels
    most = np.uint16(2 * levels + 1 if norm > 0 else 0)
    valid = True
    for i in range(len(part)):
        symbol = symbols[i]
        valid &= symbol <= most
        value = part.dtype.type((symbol >> 1) * unit)
        part[i] += -value if symbol & 1 else value
    return valid
