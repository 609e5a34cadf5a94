"""Kernels of codes of integers: Elias's, Rice's and Huffman's."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from hpcdl.compression.kernels.bit_stream import (
    ends_here,
    finish,
    logarithm,
    put,
    put_long,
    put_zeros,
    trailing_zeros,
    window,
)
from hpcdl.compression.parts.code import LARGEST

GAMMA, DELTA, OMEGA = range(3)


@njit(nogil=True, cache=True)
def encode_elias(integers: Any, wire: Any, form: Any) -> Any:
    """Write integers in the code of number ``form``: gamma, delta, omega; return the bytes."""
    at, pending, filled = 0, np.uint64(0), np.uint64(0)
    uint64 = np.uint64(1)
    for i in range(len(integers)):
        x = np.uint64(integers[i]) + uint64
        n = logarithm(x)
        low = x ^ (uint64 << n)
        zeros = np.uint64(0)
        if form == GAMMA:
            zeros = n
            word, width = uint64 | low << uint64, n + uint64
        elif form == DELTA:
            zeros = logarithm(n + uint64)
            word = uint64 | ((n + uint64) ^ (uint64 << zeros)) << uint64 | low << (zeros + uint64)
            width = n + zeros + uint64
        else:
            word, width = np.uint64(0), uint64  # groups go in front of the final zero, the last first
            while x > uint64:
                n = logarithm(x)
                word = uint64 | (x ^ (uint64 << n)) << uint64 | word << (n + uint64)
                width += n + uint64
                x = n
        at, pending, filled = put_zeros(wire, at, pending, filled, zeros)
        at, pending, filled = put_long(wire, at, pending, filled, word, width)
    return finish(wire, at, pending, filled)


@njit(nogil=True, cache=True)
def decode_prefixed(wire: Any, size: Any, form: Any, integers: Any) -> Any:
    """Fill ``integers`` from gamma or delta of ``size`` bytes; return False if the message is corrupt."""
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
def decode_omega(wire: Any, size: Any, form: Any, integers: Any) -> Any:  # noqa: ARG001 - as decode_prefixed
    """Fill ``integers`` from omega of ``size`` bytes; return False if the message is corrupt."""
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


@njit(nogil=True, cache=True)
def encode_rice(integers: Any, wire: Any, k: Any) -> Any:
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
def decode_rice(wire: Any, size: Any, k: Any, integers: Any) -> Any:
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
def encode_huffman(integers: Any, wire: Any, direct: Any, lengths: Any, codes: Any) -> Any:
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
def decode_huffman(wire: Any, size: Any, direct: Any, look_up: Any, integers: Any) -> Any:
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
