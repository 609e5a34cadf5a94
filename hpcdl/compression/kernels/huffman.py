"""Kernels of Huffman's code."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from hpcdl.compression.kernels.bit_stream import ends_here, finish, logarithm, put, put_long, window


@njit(nogil=True, cache=True)
def histogram(integers: Any, direct: Any) -> Any:
    """Return the occurrences of each symbol."""
    counts = np.zeros((1 << direct) + 32 - direct, np.int64)
    for i in range(len(integers)):
        value = np.uint64(integers[i])
        if value >> np.uint64(direct) == np.uint64(0):
            counts[np.int64(value)] += 1
        else:
            counts[(1 << direct) + np.int64(logarithm(value)) - direct] += 1
    return counts


@njit(nogil=True, cache=True)
def encode(integers: Any, wire: Any, direct: Any, lengths: Any, codes: Any) -> Any:
    """Write the codes and lower bits of integers; return the bytes."""
    at, pending, filled = 0, np.uint64(0), np.uint64(0)
    for i in range(len(integers)):
        value = np.uint64(integers[i])
        if value >> np.uint64(direct) == np.uint64(0):
            symbol = np.int64(value)
            at, pending, filled = put(
                wire, at, pending, filled, np.uint64(codes[symbol]), np.uint64(lengths[symbol])
            )
        else:
            n = logarithm(value)
            symbol = (1 << direct) + np.int64(n) - direct
            length = np.uint64(lengths[symbol])
            word = np.uint64(codes[symbol]) | (value ^ (np.uint64(1) << n)) << length
            at, pending, filled = put_long(wire, at, pending, filled, word, length + n)
    return finish(wire, at, pending, filled)


@njit(nogil=True, cache=True)
def decode(wire: Any, size: Any, direct: Any, look_up: Any, integers: Any) -> Any:
    """Fill ``integers`` from ``size`` bytes; return False if the message is corrupt."""
    bit, end, one = np.uint64(0), np.uint64(8 * size), np.uint64(1)
    largest = 1 << direct
    for i in range(len(integers)):
        word = window(wire, bit)
        code = look_up[np.int64(word & np.uint64(len(look_up) - 1))]
        length = np.uint64(code & 15)
        symbol = np.int64(code >> 4)
        bit += length
        if length == np.uint64(0):
            return False
        if symbol < largest:
            integers[i] = symbol
        else:
            n = np.uint64(symbol - largest + direct)
            integers[i] = one << n | (word >> length) & ((one << n) - one)
            bit += n
        if bit > end:
            return False
    return ends_here(wire, size, bit)
