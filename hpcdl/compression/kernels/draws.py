"""Random numbers that depend on a key and a position only: SplitMix64 (Steele et al. 2014), counter-based.

All machines draw the same bits, and the cut into buckets does not matter.
"""

from typing import Final

import numpy as np

from hpcdl.compiled import njit
from hpcdl.compression.kernels.integer_codes import trailing_zeros
from hpcdl.fabric.comm import Array

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
