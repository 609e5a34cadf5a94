"""Kernels of bit streams and of codes of integers: Elias's, Rice's and Huffman's.

The first bit is the lowest of the first byte.
"""

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.base import BaseContext
from numba.extending import intrinsic

from hpcdl.compiled import Intrinsic, njit
from hpcdl.compression.parts.protocol import LARGEST
from hpcdl.fabric.comm import Array

Word: TypeAlias = np.uint64
"""Bits, their number and their places: with signed integers numba would compute in float64."""

WINDOW: Final = 57
"""Bits that :func:`window` returns at least."""

_HALF, _LOW, _BYTE = np.uint64(32), np.uint64(0xFFFFFFFF), np.uint64(0xFF)
_0, _1, _3, _7, _8, _63 = (np.uint64(number) for number in (0, 1, 3, 7, 8, 63))


def _zeros(instruction: str) -> Any:
    """Return a function that counts zero bits of an uint64 by an instruction of LLVM; 64 for zero."""

    @intrinsic
    def count(_typing: object, _word: types.Type) -> Intrinsic:
        def emit(
            context: BaseContext, builder: ir.IRBuilder, _signature: object, arguments: Sequence[ir.Value]
        ) -> ir.Value:
            return getattr(builder, instruction)(arguments[0], context.get_constant(types.boolean, False))

        return types.uint64(types.uint64), emit

    return count


trailing_zeros, leading_zeros = _zeros("cttz"), _zeros("ctlz")


@njit(nogil=True, cache=True, inline="always")
def logarithm(x: Word) -> Word:
    """Return floor(log2 ``x``) of an uint64 above zero."""
    return _63 - leading_zeros(x)  # type: ignore[no-any-return]


@njit(nogil=True, cache=True, inline="always")
def put(wire: Array, at: int, pending: Word, filled: Word, value: Word, width: Word) -> tuple[int, Word, Word]:
    """Append the ``width`` bits of ``value``, any number if it is zero, else at most 64.

    Return (at, pending, filled): ``pending`` has the ``filled`` bits, fewer than 32, that belong at byte ``at``
    and are not yet written.
    """
    # Half words at a time: 31 pending bits and 32 new ones fit into a word of 64.
    while True:
        step = min(width, _HALF)
        pending |= (value & _LOW) << filled
        filled += step
        if filled >= _HALF:
            for i in range(4):
                wire[at + i] = (pending >> np.uint64(8 * i)) & _BYTE
            at += 4
            pending >>= _HALF
            filled -= _HALF
        width -= step
        if width == _0:
            return at, pending, filled
        value >>= _HALF


@njit(nogil=True, cache=True, inline="always")
def finish(wire: Array, at: int, pending: Word, filled: Word) -> int:
    """Write the pending bits, padded with zeros to a byte; return the end."""
    while filled > _0:
        wire[at] = pending & _BYTE
        at += 1
        pending >>= _8
        filled -= min(filled, _8)
    return at


@njit(nogil=True, cache=True, inline="always")
def window(wire: Array, bit: Word) -> Word:
    """Return the bits from ``bit`` on, the first lowest: :data:`WINDOW` valid bits, then any.

    ``wire`` is :func:`hpcdl.compression.parts.protocol.padded`; ``bit`` is at most 64 behind the message's end.
    """
    # Eight bytes from the bit's byte on: up to 7 bits before it are shifted out, so that 57 remain.
    at = np.int64(bit >> _3)
    word = _0
    for i in range(8):
        word |= np.uint64(wire[at + i]) << np.uint64(8 * i)
    return word >> (bit & _7)


@njit(nogil=True, cache=True)
def ends_here(wire: Array, size: int, bit: Word) -> bool:
    """Return True if ``bit`` is in the last of ``size`` bytes, or at their end, and only zero bits follow it."""
    if (bit + _7) >> _3 != np.uint64(size):
        return False
    return bit & _7 == _0 or np.uint64(wire[np.int64(bit >> _3)]) >> (bit & _7) == _0  # type: ignore[no-any-return]


@njit(nogil=True, cache=True)
def encode_elias(integers: Array, wire: Array, delta: bool) -> int:
    """Write integers in the code delta, else gamma; return the bytes."""
    at, pending, filled = 0, _0, _0
    for i in range(len(integers)):
        x = np.uint64(integers[i]) + _1
        n = logarithm(x)
        low = x ^ (_1 << n)
        zeros, word, width = n, _1 | low << _1, n + _1
        if delta:
            zeros = logarithm(n + _1)
            word = _1 | ((n + _1) ^ (_1 << zeros)) << _1 | low << (zeros + _1)
            width = n + zeros + _1
        at, pending, filled = put(wire, at, pending, filled, _0, zeros)
        at, pending, filled = put(wire, at, pending, filled, word, width)
    return finish(wire, at, pending, filled)


@njit(nogil=True, cache=True)
def decode_elias(wire: Array, size: int, delta: bool, integers: Array) -> bool:
    """Fill ``integers`` from the code of ``size`` bytes; return False if the message is corrupt."""
    bit, end, most = _0, np.uint64(8 * size), np.uint64(32)
    for i in range(len(integers)):
        n = trailing_zeros(window(wire, bit))
        if n > most:
            return False
        bit += n + _1
        if bit > end:
            return False
        if delta:
            n = (_1 << n | window(wire, bit) & ((_1 << n) - _1)) - _1
            if n > most:
                return False
            bit += logarithm(n + _1)
        low = window(wire, bit) & ((_1 << n) - _1)
        bit += n
        if bit > end or (n == most and low > _0):
            return False
        integers[i] = (_1 << n | low) - _1
    return ends_here(wire, size, bit)


@njit(nogil=True, cache=True)
def encode_rice(integers: Array, wire: Array, k: int) -> int:
    """Write integers with parameter ``k``; return the bytes."""
    at, pending, filled = 0, _0, _0
    shift = np.uint64(k)
    mask = (_1 << shift) - _1
    for i in range(len(integers)):
        value = np.uint64(integers[i])
        at, pending, filled = put(wire, at, pending, filled, _0, value >> shift)
        at, pending, filled = put(wire, at, pending, filled, _1 | (value & mask) << _1, shift + _1)
    return finish(wire, at, pending, filled)


@njit(nogil=True, cache=True)
def decode_rice(wire: Array, size: int, k: int, integers: Array) -> bool:
    """Fill ``integers`` from ``size`` bytes; return False if the message is corrupt."""
    bit, end = _0, np.uint64(8 * size)
    shift, whole = np.uint64(k), np.uint64(56)
    mask = (_1 << shift) - _1
    largest = np.uint64(LARGEST) >> shift
    for i in range(len(integers)):
        quotient = _0
        zeros = trailing_zeros(window(wire, bit))
        while zeros >= whole:
            quotient += whole
            bit += whole
            if bit >= end:
                return False
            zeros = trailing_zeros(window(wire, bit))
        quotient += zeros
        bit += zeros + _1
        if bit > end or quotient > largest:
            return False
        integers[i] = quotient << shift | window(wire, bit) & mask
        bit += shift
        if bit > end:
            return False
    return ends_here(wire, size, bit)


@njit(nogil=True, cache=True)
def symbol(value: Word, direct: int) -> tuple[np.int64, Word]:
    """Return the symbol of an uint64, and the number of its lower bits that follow."""
    if value >> np.uint64(direct) == _0:
        return np.int64(value), _0
    n = logarithm(value)
    return (1 << direct) + np.int64(n) - direct, n


@njit(nogil=True, cache=True)
def histogram(integers: Array, direct: int) -> Array:
    """Return the occurrences of each symbol."""
    counts = np.zeros((1 << direct) + 32 - direct, np.int64)
    for i in range(len(integers)):
        counts[symbol(np.uint64(integers[i]), direct)[0]] += 1
    return counts


@njit(nogil=True, cache=True)
def encode_huffman(integers: Array, wire: Array, direct: int, lengths: Array, codes: Array) -> int:
    """Write the codes and lower bits of integers; return the bytes."""
    at, pending, filled = 0, _0, _0
    for i in range(len(integers)):
        value = np.uint64(integers[i])
        chosen, n = symbol(value, direct)
        length = np.uint64(lengths[chosen])
        word = np.uint64(codes[chosen]) | (value & ((_1 << n) - _1)) << length
        at, pending, filled = put(wire, at, pending, filled, word, length + n)
    return finish(wire, at, pending, filled)


@njit(nogil=True, cache=True)
def decode_huffman(wire: Array, size: int, direct: int, look_up: Array, integers: Array) -> bool:
    """Fill ``integers`` from ``size`` bytes; return False if the message is corrupt."""
    bit, end = _0, np.uint64(8 * size)
    largest = 1 << direct
    for i in range(len(integers)):
        word = window(wire, bit)
        code = look_up[np.int64(word & np.uint64(len(look_up) - 1))]
        length = np.uint64(code & 15)
        chosen = np.int64(code >> 4)
        bit += length
        if length == _0:
            return False
        if chosen < largest:
            integers[i] = chosen
        else:
            n = np.uint64(chosen - largest + direct)
            integers[i] = _1 << n | (word >> length) & ((_1 << n) - _1)
            bit += n
        if bit > end:
            return False
    return ends_here(wire, size, bit)
