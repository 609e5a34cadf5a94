"""Rice's code: for gaps between entries of a known density."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numba import njit

from hpcdl.compression.parts.bit_stream import (
    ends_here,
    finish,
    padded,
    put_long,
    put_zeros,
    trailing_zeros,
    window,
)
from hpcdl.compression.parts.code import LARGEST, check_room

if TYPE_CHECKING:
    from hpcdl.compression.parts.protocol import Bytes
    from hpcdl.fabric.comm import Array

WIDEST: Final = 31
"""Largest parameter k."""


class Rice:
    """Rice code: the quotient by 2^k in unary, then k bits of remainder (Rice 1979; Strom 2015, section 3).

    A message's first byte is k: the largest with ``count`` x 2^k below the sum. For gaps 2^k is then just below
    1 / density. This k costs the fewest bits at worst.
    """

    words = False

    def bound(self, count: int, total: int) -> int:
        """See :class:`hpcdl.compression.parts.code.Code`."""
        k = parameter(count, total)
        return 1 + (count * (k + 1) + (total >> k) + 7) // 8 if count else 1

    def encode(self, integers: Array, wire: Bytes) -> int:
        """See :class:`hpcdl.compression.parts.code.Code`."""
        total = int(integers.sum(dtype=np.uint64))
        check_room(wire, self.bound(len(integers), total))
        k = parameter(len(integers), total)
        wire[0] = k
        return 1 + int(_encode(integers, wire[1:], k))

    def decode(self, message: Bytes, integers: Array) -> None:
        """See :class:`hpcdl.compression.parts.code.Code`."""
        if not len(message) or message[0] > WIDEST:
            raise ValueError("Rice code: no parameter from 0 to 31")
        if not _decode(padded(message[1:]), len(message) - 1, int(message[0]), integers):
            raise ValueError(f"Rice code: {len(message)} bytes are not {len(integers)} integers")


def parameter(count: int, total: int) -> int:
    """Return k, 0 to 31, for ``count`` integers with sum ``total``."""
    return min(WIDEST, ((total - 1) // count).bit_length() - 1) if total > count > 0 else 0


@njit(nogil=True, cache=True)
def _encode(integers: Any, wire: Any, k: Any) -> Any:
    at, pending, filled = 0, np.uint64(0), np.uint64(0)
    one, shift = np.uint64(1), np.uint64(k)
    mask = (one << shift) - one
    for i in range(len(integers)):
        value = np.uint64(integers[i])
        at, pending, filled = put_zeros(wire, at, pending, filled, value >> shift)
        rest = one | (value & mask) << one
        at, pending, filled = put_long(wire, at, pending, filled, rest, shift + one)
    return finish(wire, at, pending, filled)


@njit(nogil=True, cache=True)
def _decode(wire: Any, size: Any, k: Any, integers: Any) -> Any:
    bit, end = np.uint64(0), np.uint64(8 * size)
    one, shift, whole = np.uint64(1), np.uint64(k), np.uint64(56)
    mask = (one << shift) - one
    largest = np.uint64(LARGEST) >> shift
    for i in range(len(integers)):
        quotient = np.uint64(0)
        zeros = trailing_zeros(window(wire, bit))
        while zeros >= whole:
            quotient += whole
            bit += whole
            if bit >= end:
                return False
            zeros = trailing_zeros(window(wire, bit))
        quotient += zeros
        bit += zeros + one
        if bit > end or quotient > largest:
            return False
        integers[i] = quotient << shift | window(wire, bit) & mask
        bit += shift
        if bit > end:
            return False
    return ends_here(wire, size, bit)
