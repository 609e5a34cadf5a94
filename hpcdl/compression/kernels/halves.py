"""Conversions between float32 and 16-bit numbers, and sums of 16-bit numbers; to nearest, even on ties.

16-bit numbers, float16 and bfloat16, are given by their bits, as uint16.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array

_MAGNITUDE: Final = np.uint32(0x7FFFFFFF)
_INFINITE: Final = np.uint32(0x7F800000)
_UPPER: Final = np.uint32(0xFFFF0000)
_16: Final = np.uint32(16)
_13: Final = np.uint32(13)
_1: Final = np.uint32(1)
_HALF16: Final = np.uint32(0x7FFF)
_HALF13: Final = np.uint32(0xFFF)
_SIGN: Final = np.uint32(0x8000)
_MAGNITUDE16: Final = np.uint32(0x7FFF)
_INFINITE16: Final = np.uint32(0x7C00)
_LARGEST: Final = np.uint32(0x477FE000)
"""65504, the largest float16."""
_BEYOND: Final = np.uint32(0x47800000)
"""65536, which float16 has as infinity."""
_NORMAL: Final = np.uint32(0x38800000)
"""2^-14, the least normal float16."""
_NORMAL16: Final = np.uint32(0x400)
_REBIAS: Final = np.uint32(112 << 23)
_TO_SUBNORMAL: Final = np.float32(2.0**24)
_FROM_SUBNORMAL: Final = np.float32(2.0**-24)


@intrinsic
def _float(_context: Any, _bits: Any) -> Any:
    """Return the float32 of 32 bits."""
    return types.float32(types.uint32), lambda _c, builder, _s, value: builder.bitcast(value[0], ir.FloatType())


@intrinsic
def _bits(_context: Any, _number: Any) -> Any:
    """Return the 32 bits of a float32."""
    return types.uint32(types.float32), lambda _c, builder, _s, value: builder.bitcast(value[0], ir.IntType(32))


@njit(nogil=True, cache=True)
def _to_float16(number: Any, most: np.uint32) -> Any:
    """Return the bits of the nearest float16; magnitudes above the one with the bits ``most`` become that one."""
    bits = _bits(number)
    least = min(bits & _MAGNITUDE, most)
    normal = (least + (((least >> _13) & _1) + _HALF13) - _REBIAS) >> _13
    tiny = np.uint32(np.int32(np.rint(min(abs(number), np.float32(1)) * _TO_SUBNORMAL)))
    return (bits >> _16) & _SIGN | (normal if least >= _NORMAL else tiny)


@njit(nogil=True, cache=True)
def _of_float16(sent: np.uint32) -> Any:
    """Return the float32 of a float16's bits."""
    magnitude = sent & _MAGNITUDE16
    high = _REBIAS + _REBIAS if magnitude >= _INFINITE16 else _REBIAS
    normal = _float((magnitude << _13) + high)
    tiny = np.float32(np.int32(magnitude)) * _FROM_SUBNORMAL
    number = normal if magnitude >= _NORMAL16 else tiny
    return -number if sent & _SIGN else number


@njit(nogil=True, cache=True)
def _to_bfloat16(number: Any) -> Any:
    """Return the bits of the nearest bfloat16, above 16 bits that have no meaning."""
    bits = _bits(number)
    return bits + (((bits >> _16) & _1) + _HALF16)


@njit(nogil=True, cache=True)
def narrow_bfloat16(numbers: Array, sent: Array, residual: Array | None) -> np.bool_:
    """Write float32 ``numbers`` as bfloat16 to ``sent``, and what is lost to ``residual``, unless it is None.

    Returns True if all numbers, before and after, are finite.
    """
    worst = np.uint32(0)
    for i in range(len(numbers)):
        rounded = _to_bfloat16(numbers[i])
        worst = max(worst, _bits(numbers[i]) & _MAGNITUDE, rounded & _MAGNITUDE)
        sent[i] = np.uint16(rounded >> _16)
        if residual is not None:
            residual[i] = numbers[i] - _float(rounded & _UPPER)
    return worst < _INFINITE


@njit(nogil=True, cache=True)
def widen_bfloat16(sent: Array, numbers: Array) -> np.bool_:
    """Write bfloat16 numbers as float32 to ``numbers``; return True if all are finite."""
    worst = np.uint32(0)
    for i in range(len(sent)):
        bits = np.uint32(sent[i]) << _16
        worst = max(worst, bits & _MAGNITUDE)
        numbers[i] = _float(bits)
    return worst < _INFINITE


@njit(nogil=True, cache=True)
def add_bfloat16(into: Array, addend: Array) -> None:
    """Add bfloat16 numbers to ``into`` in float32, and round the sums."""
    for i in range(len(into)):
        total = _float(np.uint32(into[i]) << _16) + _float(np.uint32(addend[i]) << _16)
        into[i] = np.uint16(_to_bfloat16(total) >> _16)


@njit(nogil=True, cache=True)
def narrow_float16(numbers: Array, sent: Array, residual: Array | None) -> np.bool_:
    """Write float32 ``numbers`` as float16 to ``sent``, and what is lost to ``residual``, unless it is None.

    Larger ones than 65504 become 65504. Returns True if all numbers are finite.
    """
    worst = np.uint32(0)
    for i in range(len(numbers)):
        rounded = _to_float16(numbers[i], _LARGEST)
        worst = max(worst, _bits(numbers[i]) & _MAGNITUDE)
        sent[i] = np.uint16(rounded)
        if residual is not None:
            residual[i] = numbers[i] - _of_float16(rounded)
    return worst < _INFINITE


@njit(nogil=True, cache=True)
def widen_float16(sent: Array, numbers: Array) -> np.bool_:
    """Write float16 numbers as float32 to ``numbers``; return True if all are finite."""
    worst = np.uint32(0)
    for i in range(len(sent)):
        bits = np.uint32(sent[i])
        worst = max(worst, bits & _MAGNITUDE16)
        numbers[i] = _of_float16(bits)
    return worst < _INFINITE16


@njit(nogil=True, cache=True)
def add_float16(into: Array, addend: Array) -> None:
    """Add float16 numbers to ``into`` in float32, and round the sums; those that are too large are infinite."""
    for i in range(len(into)):
        total = _of_float16(np.uint32(into[i])) + _of_float16(np.uint32(addend[i]))
        into[i] = np.uint16(_to_float16(total, _BEYOND))
