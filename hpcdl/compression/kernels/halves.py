"""Conversions between float32 and 16-bit numbers, and sums of 16-bit numbers; to nearest, even on ties.

16-bit numbers, float16 and bfloat16, are given by their bits, as uint16.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from hpcdl.compiled import Intrinsic, njit
from hpcdl.fabric.comm import Array

_MAGNITUDE: Final = np.uint32(0x7FFFFFFF)
_INFINITE: Final = np.uint32(0x7F800000)
_UPPER: Final = np.uint32(0xFFFF0000)
_16: Final = np.uint32(16)
_1: Final = np.uint32(1)
_ROUND: Final = np.uint32(0x7FFF)
_MAGNITUDE16: Final = np.uint16(0x7FFF)
_INFINITE16: Final = np.uint16(0x7C00)
_LARGEST: Final = np.float32(65504)
"""The largest float16."""


@intrinsic
def _to_float16(_context: object, _number: types.Type) -> Intrinsic:
    """Return the bits of the nearest float16 of a float32."""

    def emit(_context: object, builder: ir.IRBuilder, _signature: object, value: Sequence[ir.Value]) -> ir.Value:
        return builder.bitcast(builder.fptrunc(value[0], ir.HalfType()), ir.IntType(16))

    return types.uint16(types.float32), emit


@intrinsic
def _of_float16(_context: object, _bits: types.Type) -> Intrinsic:
    def emit(_context: object, builder: ir.IRBuilder, _signature: object, value: Sequence[ir.Value]) -> ir.Value:
        return builder.fpext(builder.bitcast(value[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.uint16), emit


@njit(nogil=True, cache=True)
def _to_bfloat16(number: np.float32) -> np.uint32:
    """Return the bits of the nearest bfloat16, above 16 bits that have no meaning."""
    # Half a unit of the last bit is added, less one if that bit is even: ties go to even.
    bits = np.float32(number).view(np.uint32)
    return bits + (((bits >> _16) & _1) + _ROUND)


@njit(nogil=True, cache=True)
def narrow_bfloat16(numbers: Array, sent: Array, residual: Array | None) -> np.bool_:
    """Write float32 ``numbers`` as bfloat16 to ``sent``, and what is lost to ``residual``, unless it is None.

    Returns True if all numbers, before and after, are finite.
    """
    worst = np.uint32(0)
    for i in range(len(numbers)):
        rounded = _to_bfloat16(numbers[i])
        worst = max(worst, np.float32(numbers[i]).view(np.uint32) & _MAGNITUDE, rounded & _MAGNITUDE)
        sent[i] = np.uint16(rounded >> _16)
        if residual is not None:
            residual[i] = numbers[i] - np.uint32(rounded & _UPPER).view(np.float32)
    return worst < _INFINITE


@njit(nogil=True, cache=True)
def widen_bfloat16(sent: Array, numbers: Array) -> np.bool_:
    """Write bfloat16 numbers as float32 to ``numbers``; return True if all are finite."""
    worst = np.uint32(0)
    for i in range(len(sent)):
        bits = np.uint32(sent[i]) << _16
        worst = max(worst, bits & _MAGNITUDE)
        numbers[i] = np.uint32(bits).view(np.float32)
    return worst < _INFINITE


@njit(nogil=True, cache=True)
def add_bfloat16(into: Array, addend: Array) -> None:
    """Add bfloat16 numbers to ``into`` in float32, and round the sums."""
    for i in range(len(into)):
        upper, other = np.uint32(np.uint32(into[i]) << _16), np.uint32(np.uint32(addend[i]) << _16)
        total = upper.view(np.float32) + other.view(np.float32)
        into[i] = np.uint16(_to_bfloat16(total) >> _16)


@njit(nogil=True, cache=True)
def narrow_float16(numbers: Array, sent: Array, residual: Array | None) -> np.bool_:
    """Write float32 ``numbers`` as float16 to ``sent``, and what is lost to ``residual``, unless it is None.

    Larger ones than 65504 become 65504. Returns True if all numbers are finite.
    """
    worst = np.uint32(0)
    for i in range(len(numbers)):
        worst = max(worst, np.float32(numbers[i]).view(np.uint32) & _MAGNITUDE)
        # rounding would make larger ones infinite, and the residual with them
        sent[i] = _to_float16(min(max(numbers[i], -_LARGEST), _LARGEST))
        if residual is not None:
            residual[i] = numbers[i] - _of_float16(sent[i])
    return worst < _INFINITE


@njit(nogil=True, cache=True)
def widen_float16(sent: Array, numbers: Array) -> np.bool_:
    """Write float16 numbers as float32 to ``numbers``; return True if all are finite."""
    worst = np.uint16(0)
    for i in range(len(sent)):
        worst = max(worst, sent[i] & _MAGNITUDE16)
        numbers[i] = _of_float16(sent[i])
    return worst < _INFINITE16


@njit(nogil=True, cache=True)
def add_float16(into: Array, addend: Array) -> None:
    """Add float16 numbers to ``into`` in float32, and round the sums; those that are too large are infinite."""
    for i in range(len(into)):
        into[i] = _to_float16(_of_float16(into[i]) + _of_float16(addend[i]))
