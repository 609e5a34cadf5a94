"""Kernels of Rice's code."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from hpcdl.compression.kernels.bit_stream import ends_here, finish, put_long, put_zeros, trailing_zeros, window
from hpcdl.compression.parts.code import LARGEST


@njit(nogil=True, cache=True)
def encode(integers: Any, wire: Any, k: Any) -> Any:
    """Write integers with parameter ``k``; return the bytes."""
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
def decode(wire: Any, size: Any, k: Any, integers: Any) -> Any:
    """Fill ``integers`` from ``size`` bytes; return False if the message is corrupt."""
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
