"""Kernels that write and read bits; the first bit is the lowest of the first byte."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

WINDOW: Final = 57
"""Bits that :func:`window` returns at least."""

_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_BYTE = np.uint64(0xFF)
_8 = np.uint64(8)
_7 = np.uint64(7)
_3 = np.uint64(3)
_1 = np.uint64(1)
_63 = np.uint64(63)


@intrinsic
def trailing_zeros(typing: Any, word: Any) -> Any:
    """Return the zero bits below the lowest one of an uint64; 64 for zero."""
    del typing, word

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del signature
        return builder.cttz(arguments[0], context.get_constant(types.boolean, False))

    return types.uint64(types.uint64), emit


@intrinsic
def leading_zeros(typing: Any, word: Any) -> Any:
    """Return the zero bits above the highest one of an uint64; 64 for zero."""
    del typing, word

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del signature
        return builder.ctlz(arguments[0], context.get_constant(types.boolean, False))

    return types.uint64(types.uint64), emit


@njit(nogil=True, cache=True, inline="always")
def logarithm(x: Any) -> Any:
    """Return floor(log2 ``x``) of an uint64 above zero."""
    return _63 - leading_zeros(x)


@njit(nogil=True, cache=True, inline="always")
def put(wire: Any, at: Any, pending: Any, filled: Any, value: Any, width: Any) -> Any:
    """Append the ``width`` bits of ``value``, at most 32; return (at, pending, filled).

    ``pending`` has the ``filled`` bits, fewer than 32, that belong at byte ``at`` and are not yet written.
    """
    pending |= value << filled
    filled += width
    if filled >= _HALF:
        wire[at] = pending & _BYTE
        wire[at + 1] = (pending >> np.uint64(8)) & _BYTE
        wire[at + 2] = (pending >> np.uint64(16)) & _BYTE
        wire[at + 3] = (pending >> np.uint64(24)) & _BYTE
        at += 4
        pending >>= _HALF
        filled -= _HALF
    return at, pending, filled


@njit(nogil=True, cache=True, inline="always")
def put_zeros(wire: Any, at: Any, pending: Any, filled: Any, width: Any) -> Any:
    """Append ``width`` zero bits, any number; return (at, pending, filled) of :func:`put`."""
    while width >= _HALF:
        at, pending, filled = put(wire, at, pending, filled, np.uint64(0), _HALF)
        width -= _HALF
    return put(wire, at, pending, filled, np.uint64(0), width)


@njit(nogil=True, cache=True, inline="always")
def put_long(wire: Any, at: Any, pending: Any, filled: Any, value: Any, width: Any) -> Any:
    """Append the ``width`` bits of ``value``, at most 64; return (at, pending, filled) of :func:`put`."""
    if width > _HALF:
        at, pending, filled = put(wire, at, pending, filled, value & _LOW, _HALF)
        value >>= _HALF
        width -= _HALF
    return put(wire, at, pending, filled, value, width)


@njit(nogil=True, cache=True, inline="always")
def finish(wire: Any, at: Any, pending: Any, filled: Any) -> Any:
    """Write the pending bits, padded with zeros to a byte; return the end."""
    while filled > np.uint64(0):
        wire[at] = pending & _BYTE
        at += 1
        pending >>= _8
        filled -= min(filled, _8)
    return at


@njit(nogil=True, cache=True, inline="always")
def window(wire: Any, bit: Any) -> Any:
    """Return the bits from ``bit`` on, the first lowest: :data:`WINDOW` valid bits, then any.

    ``wire`` is :func:`hpcdl.compression.parts.code.padded`; ``bit`` is at most 64 behind the message's end.
    """
    at = np.int64(bit >> _3)
    word = np.uint64(0)
    for i in range(8):
        word |= np.uint64(wire[at + i]) << np.uint64(8 * i)
    return word >> (bit & _7)


@njit(nogil=True, cache=True)
def ends_here(wire: Any, size: Any, bit: Any) -> Any:
    """Return True if ``bit`` is in the last of ``size`` bytes, or at their end, and only zero bits follow it."""
    if (bit + _7) >> _3 != np.uint64(size):
        return False
    return bit & _7 == np.uint64(0) or np.uint64(wire[np.int64(bit >> _3)]) >> (bit & _7) == np.uint64(0)
