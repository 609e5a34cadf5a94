"""Kernels of Elias's codes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from hpcdl.compression.kernels.bit_stream import (
    ends_here,
    finish,
    logarithm,
    put_long,
    put_zeros,
    trailing_zeros,
    window,
)

GAMMA, DELTA, OMEGA = range(3)


@njit(nogil=True, cache=True)
def encode(integers: Any, wire: Any, form: Any) -> Any:
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
def decode_omega(wire: Any, size: Any, form: Any, integers: Any) -> Any:  # noqa: ARG001 - as _decode_prefixed
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
