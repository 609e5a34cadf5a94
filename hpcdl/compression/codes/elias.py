"""Elias's code of integers of unknown range."""

from __future__ import annotations

from math import log2

import numpy as np

from hpcdl.compression.parts.code import check_room, padded
from hpcdl.compression.parts.protocol import Bytes, kernels
from hpcdl.fabric.comm import Array


class Elias:
    """Universal code delta of x = integer + 1 (Elias 1975): no parameter, short for small integers.

    With N = floor(log2 x) and M = floor(log2(N + 1)): M zeros, N + 1 in M + 1 bits, then the N lower bits of x.
    """

    words = False

    def __init__(self) -> None:
        self._kernels = kernels(None, "integer_codes")

    def bound(self, count: int, total: int) -> int:
        if not count:
            return 0
        logarithm = log2(1 + total / count)  # the bits are at most a concave function of it (Jensen's inequality)
        return int(count * (1 + logarithm + 2 * log2(1 + logarithm)) / 8) + 2

    def encode(self, integers: Array, wire: Bytes) -> int:
        check_room(wire, self.bound(len(integers), int(integers.sum(dtype=np.uint64))))
        return int(self._kernels.encode_elias(integers, wire, True))

    def decode(self, message: Bytes, integers: Array) -> None:
        if not self._kernels.decode_elias(padded(message), len(message), True, integers):
            raise ValueError(f"Elias code: {len(message)} bytes are not {len(integers)} integers")
