"""Reproducible sums and random numbers, and codes of one or two bits packed into bytes.

Sums have a fixed order, and vector instructions still compute them. Random numbers depend on a key and a position
only (SplitMix64, Steele et al. 2014, counter-based), so that the cut into buckets does not matter. All machines
have the same bits.

The first entry of a packed byte has its lowest bits. Kernels work on blocks: codes of a block, one byte each, stay
in the cache. A buffer of codes is a multiple of 8 bytes long, and codes after the last entry are zero.
"""

from typing import Final

import numpy as np

from hpcdl.compiled import njit
from hpcdl.compression.kernels.integer_codes import trailing_zeros
from hpcdl.fabric.comm import Array

BLOCK: Final = 4096
"""Entries of a block."""

_ONES: Final = np.uint64(0x0101010101010101)
_GATHER: Final = np.uint64(0x0102040810204080)
_SCATTER: Final = np.uint64(0x8040201008040201)
_BELOW_TOP: Final = np.uint64(0x7F7F7F7F7F7F7F7F)
_HIGH_BYTE: Final = np.uint64(56)
_TOP_BIT: Final = np.uint64(7)


@njit(nogil=True, cache=True)
def pack_bits(codes: Array, packed: Array) -> None:
    """Write ``codes``, 0 or 1, to ``packed``, eight to a byte."""
    # The product moves the bit of byte i from place 8 i to place 56 + i: eight bits meet in the highest byte.
    words = codes.view(np.uint64)
    for k in range(len(packed)):
        packed[k] = np.uint8((words[k] * _GATHER) >> _HIGH_BYTE)


@njit(nogil=True, cache=True)
def unpack_bits(packed: Array, codes: Array) -> None:
    """Write each bit of ``packed`` to a byte of ``codes``."""
    # Eight copies of the byte, of which copy i keeps bit i; adding 127 carries any set bit to the highest one.
    words = codes.view(np.uint64)
    for k in range(len(packed)):
        single = (np.uint64(packed[k]) * _ONES) & _SCATTER
        words[k] = ((single + _BELOW_TOP) >> _TOP_BIT) & _ONES


@njit(nogil=True, cache=True)
def pack_pairs(codes: Array, packed: Array) -> None:
    """Write ``codes``, 0 to 3, to ``packed``, four to a byte."""
    # Byte i has its two bits at place 8 i; a shift by 6 i brings them to place 2 i.
    words = codes.view(np.uint32)
    for k in range(len(packed)):
        word = words[k]
        packed[k] = np.uint8(word | (word >> 6) | (word >> 12) | (word >> 18))


@njit(nogil=True, cache=True)
def unpack_pairs(packed: Array, codes: Array) -> None:
    """Write each pair of bits of ``packed`` to a byte of ``codes``."""
    words = codes.view(np.uint32)
    for k in range(len(packed)):
        byte = np.uint32(packed[k])
        words[k] = np.uint32((byte | (byte << 6) | (byte << 12) | (byte << 18)) & 0x03030303)


@njit(nogil=True, cache=True)
def piece(cuts: Array, segment: int, start: int, stop: int) -> tuple[int, int]:
    """Return the segment of the entry ``start``, searched from ``segment`` on, and the piece's end.

    ``cuts`` (segments + 1,): boundaries. The piece ends with the segment, at ``stop`` at the latest.
    """
    while cuts[segment + 1] <= start:
        segment += 1
    return segment, min(stop, cuts[segment + 1])


LANES: Final = 64
"""Partial sums: lane i adds entries i, i + 64, i + 128, ..."""
CHUNK: Final = 1 << 14
"""Entries of which lanes are summed; longer segments add their chunks in order. A GPU sums chunks concurrently."""


@njit(nogil=True, cache=True)
def total(lanes: Array, used: int) -> float:
    """Return the sum of the first ``used`` of all lanes; ``lanes`` is overwritten."""
    if used < LANES:
        result = 0.0
        for i in range(used):
            result += lanes[i]
        return result
    # Halves, not one after the other: the order is fixed, and vector instructions of any width can follow it.
    width = LANES
    while width > 1:
        width //= 2
        lower, upper = lanes[:width], lanes[width : 2 * width]
        for i in range(width):
            lower[i] += upper[i]
    return float(lanes[0])


@njit(nogil=True, cache=True)
def add_chunks(sums: Array, firsts: Array, totals: Array) -> None:
    """Write the sums of segments to ``totals`` (segments, k), of those of their chunks (chunks, k).

    ``firsts`` (segments + 1,): first chunk of each segment.
    """
    totals[:] = 0
    for s in range(len(firsts) - 1):
        for c in range(firsts[s], firsts[s + 1]):
            for k in range(totals.shape[1]):
                totals[s, k] += sums[c, k]


_STEP: Final = 0x9E3779B97F4A7C15
_STEP_WORD: Final = np.uint64(_STEP)
_FIRST_WORD: Final = np.uint64(0xBF58476D1CE4E5B9)
_SECOND_WORD: Final = np.uint64(0x94D049BB133111EB)
_30, _27, _31 = np.uint64(30), np.uint64(27), np.uint64(31)

UNIT: Final = 2.0**-32
"""Factor from a draw to a number in [0, 1)."""


@njit(nogil=True, cache=True, inline="always")
def _mix(word: np.uint64) -> np.uint64:
    """Return the output of SplitMix64 for the state ``word``, an uint64."""
    word = (word ^ (word >> _30)) * _FIRST_WORD
    word = (word ^ (word >> _27)) * _SECOND_WORD
    return word ^ (word >> _31)


@njit(nogil=True, cache=True)
def subset(positions: Array, length: int, seed: np.uint64) -> None:
    """Fill ``positions``, int32 (count,), with distinct positions below ``length``, rising."""
    count = len(positions)
    inverse = 2 * count > length
    marks = np.zeros((length + 63) // 64, np.uint64)
    state, drawn = seed, 0
    while drawn < (length - count if inverse else count):
        state += _STEP_WORD
        word = _mix(state)
        # 32 random bits times the length, shifted by 32: a position without a division
        position = ((word >> np.uint64(32)) * np.uint64(length)) >> np.uint64(32)
        at, bit = np.int64(position >> np.uint64(6)), np.uint64(1) << (position & np.uint64(63))
        if marks[at] & bit == np.uint64(0):
            marks[at] |= bit
            drawn += 1
    i = 0
    for block in range(len(marks)):
        word = ~marks[block] if inverse else marks[block]
        while word != np.uint64(0) and i < count:  # bits behind the end come last
            positions[i] = 64 * block + np.int64(trailing_zeros(word))
            word &= word - np.uint64(1)
            i += 1


def key(*numbers: int) -> np.uint64:
    """Return the key of a stream, made of non-negative integers such as seed, rank and step."""
    state = 0
    for number in numbers:
        state = int(_mix(np.uint64((state + number * _STEP + 1) % (1 << 64))))
    return np.uint64(state)


@njit(nogil=True, cache=True)
def draw(words: Array, stream: np.uint64, first: int) -> None:
    """Fill ``words``, uint64, with the words of a stream from number ``first`` on.

    Each word holds two draws of 32 bits.
    """
    for i in range(len(words)):
        words[i] = _mix(stream + np.uint64(first + i) * _STEP_WORD)
