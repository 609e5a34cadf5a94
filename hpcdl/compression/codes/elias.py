"""Elias's codes of integers of unknown range."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numba import njit

from hpcdl.compression.parts.bit_stream import (
    ends_here,
    finish,
    logarithm,
    padded,
    put_long,
    put_zeros,
    trailing_zeros,
    window,
)
from hpcdl.compression.parts.code import check_room, most_bits

if TYPE_CHECKING:
    from hpcdl.compression.parts.protocol import Bytes
    from hpcdl.fabric.comm import Array

GAMMA, DELTA, OMEGA = range(3)
FORMS: Final = {"gamma": GAMMA, "delta": DELTA, "omega": OMEGA}


class Elias:
    """Universal code of x = integer + 1 (Elias 1975): no parameter, short for small integers.

    ``form`` is one of these, with N = floor(log2 x):

    - ``gamma``: N zeros, then x in N + 1 bits.
    - ``delta``: N + 1 as gamma, then the N lower bits of x. The shortest of the three for gaps.
    - ``omega``: the recursive code. QSGD codes gaps and levels with it (Alistarh 2017, section 3.2).
    """

    words = False

    def __init__(self, *, form: str = "delta") -> None:
        """Raise ValueError for an unknown ``form``."""
        if form not in FORMS:
            raise ValueError(f"form must be one of {', '.join(FORMS)}, not {form!r}")
        self._form = FORMS[form]
        self._steps = [((1 << n) - 1, _bits(n, self._form)) for n in range(33)]

    def bound(self, count: int, total: int) -> int:
        """See :class:`hpcdl.compression.parts.code.Code`."""
        return (most_bits(self._steps, count, total) + 7) // 8

    def encode(self, integers: Array, wire: Bytes) -> int:
        """See :class:`hpcdl.compression.parts.code.Code`."""
        check_room(wire, self.bound(len(integers), int(integers.sum(dtype=np.uint64))))
        return int(_encode(integers, wire, self._form))

    def decode(self, message: Bytes, integers: Array) -> None:
        """See :class:`hpcdl.compression.parts.code.Code`."""
        decode = _decode_omega if self._form == OMEGA else _decode_prefixed
        if not decode(padded(message), len(message), self._form, integers):
            raise ValueError(f"Elias code: {len(message)} bytes are not {len(integers)} integers")


def _bits(n: int, form: int) -> int:
    """Return the bits of an x with floor(log2 x) = ``n``."""
    if form == GAMMA:
        return 2 * n + 1
    if form == DELTA:
        return n + 2 * (n + 1).bit_length() - 1
    bits = 1
    while n > 0:
        bits += n + 1
        n = n.bit_length() - 1
    return bits


@njit(nogil=True, cache=True)
def _encode(integers: Any, wire: Any, form: Any) -> Any:
    at, pending, filled = 0, np.uint64(0), np.uint64(0)
    one = np.uint64(1)
    for i in range(len(integers)):
        x = np.uint64(integers[i]) + one
        n = logarithm(x)
        low = x ^ (one << n)
        zeros = np.uint64(0)
        if form == GAMMA:
            zeros = n
            word, width = one | low << one, n + one
        elif form == DELTA:
            zeros = logarithm(n + one)
            word = one | ((n + one) ^ (one << zeros)) << one | low << (zeros + one)
            width = n + zeros + one
        else:
            word, width = np.uint64(0), one  # groups go in front of the final zero, the last first
            while x > one:
                n = logarithm(x)
                word = one | (x ^ (one << n)) << one | word << (n + one)
                width += n + one
                x = n
        at, pending, filled = put_zeros(wire, at, pending, filled, zeros)
        at, pending, filled = put_long(wire, at, pending, filled, word, width)
    return finish(wire, at, pending, filled)


@njit(nogil=True, cache=True)
def _decode_prefixed(wire: Any, size: Any, form: Any, integers: Any) -> Any:
    bit, end = np.uint64(0), np.uint64(8 * size)
    one, most = np.uint64(1), np.uint64(32)
    for i in range(len(integers)):
        n = trailing_zeros(window(wire, bit))
        if n > most:
            return False
        bit += n + one
        if bit > end:
            return False
        if form == DELTA:
            n = (one << n | window(wire, bit) & ((one << n) - one)) - one
            if n > most:
                return False
            bit += logarithm(n + one)
        low = window(wire, bit) & ((one << n) - one)
        bit += n
        if bit > end or (n == most and low > np.uint64(0)):
            return False
        integers[i] = (one << n | low) - one
    return ends_here(wire, size, bit)


@njit(nogil=True, cache=True)
def _decode_omega(wire: Any, size: Any, form: Any, integers: Any) -> Any:  # noqa: ARG001 - as _decode_prefixed
    bit, end = np.uint64(0), np.uint64(8 * size)
    one, largest = np.uint64(1), np.uint64(1 << 32)
    for i in range(len(integers)):
        x = one
        while True:
            if bit >= end:
                return False
            group = window(wire, bit)
            bit += one
            if group & one == np.uint64(0):
                break
            n = x
            if n > np.uint64(32):
                return False
            x = one << n | (group >> one) & ((one << n) - one)
            bit += n
            if x > largest or bit > end:
                return False
        integers[i] = x - one
    return ends_here(wire, size, bit)
