"""Conversions between float32 and 16-bit numbers, and sums of 16-bit numbers; to nearest, even on ties.

Numbers are given by their bits: float32 as uint32, float16 and bfloat16 as uint16.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numba import njit

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array

BLOCK: Final = 4096
"""Numbers that are added in the cache."""
_MAGNITUDE: Final = np.uint32(0x7FFFFFFF)
_INFINITE: Final = np.uint32(0x7F800000)
_SIGN: Final = np.uint32(0x8000)
_16: Final = np.uint32(16)
_13: Final = np.uint32(13)
_1: Final = np.uint32(1)
_HALF16: Final = np.uint32(0x7FFF)
_HALF13: Final = np.uint32(0xFFF)
_LARGEST: Final = np.uint32(0x477FE000)
"""65504, the largest float16."""
_NORMAL: Final = np.uint32(0x38800000)
"""2^-14, the least normal float16."""
_REBIAS: Final = np.uint32(112 << 23)
_TO_SUBNORMAL: Final = np.float32(2.0**24)
_TO_FLOAT32: Final = np.float32(2.0**112)


@njit(nogil=True, cache=True)
def narrow_bfloat16(bits: Array, sent: Array) -> np.bool_:
    """Write numbers as bfloat16 to ``sent``; return True if all of them, before and after, are finite."""
    worst = np.uint32(0)
    for i in range(len(bits)):
        rounded = bits[i] + (((bits[i] >> _16) & _1) + _HALF16)
        worst = max(worst, bits[i] & _MAGNITUDE, rounded & _MAGNITUDE)
        sent[i] = np.uint16(rounded >> _16)
    return worst < _INFINITE


@njit(nogil=True, cache=True)
def widen_bfloat16(sent: Array, bits: Array) -> np.bool_:
    """Write bfloat16 numbers as float32 to ``bits``; return True if all are finite."""
    worst = np.uint32(0)
    for i in range(len(sent)):
        bits[i] = np.uint32(sent[i]) << _16
        worst = max(worst, bits[i] & _MAGNITUDE)
    return worst < _INFINITE


@njit(nogil=True, cache=True)
def narrow_float16(bits: Array, numbers: Array, sent: Array) -> np.bool_:
    """Write ``numbers``, float32 with ``bits``, as float16 to ``sent``; return True if all are finite.

    Larger ones than 65504 become 65504.
    """
    worst = np.uint32(0)
    for i in range(len(bits)):
        magnitude = bits[i] & _MAGNITUDE
        worst = max(worst, magnitude)
        least = min(magnitude, _LARGEST)
        normal = (least + (((least >> _13) & _1) + _HALF13) - _REBIAS) >> _13
        tiny = np.uint32(np.rint(min(abs(numbers[i]), np.float32(1)) * _TO_SUBNORMAL))
        sent[i] = np.uint16((bits[i] >> _16) & _SIGN | (normal if least >= _NORMAL else tiny))
    return worst < _INFINITE


@njit(nogil=True, cache=True)
def widen_float16(sent: Array, table: Array, numbers: Array) -> np.bool_:
    """Write float16 numbers as float32 to ``numbers``; return True if all are finite. ``table``: by their bits."""
    worst = np.uint16(0)
    for i in range(len(sent)):
        worst = max(worst, sent[i] & np.uint16(0x7FFF))
        numbers[i] = table[sent[i]]
    return worst < np.uint16(0x7C00)


@njit(nogil=True, cache=True)
def add_bfloat16(into: Array, addend: Array) -> None:
    """Add bfloat16 numbers to ``into`` in float32, and round the sums."""
    sums, others = np.empty(BLOCK, np.uint32), np.empty(BLOCK, np.uint32)
    numbers, more = sums.view(np.float32), others.view(np.float32)
    for start in range(0, len(into), BLOCK):
        mine, theirs = into[start : start + BLOCK], addend[start : start + BLOCK]
        for i in range(len(mine)):
            sums[i] = np.uint32(mine[i]) << _16
            others[i] = np.uint32(theirs[i]) << _16
        for i in range(len(mine)):
            numbers[i] += more[i]
        for i in range(len(mine)):
            mine[i] = np.uint16((sums[i] + (((sums[i] >> _16) & _1) + _HALF16)) >> _16)
