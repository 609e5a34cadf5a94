"""Codes that need no table: Rice's, for gaps between entries of a known density, Elias's, and Strom's words."""

from math import log2
from typing import Final

import numpy as np

from hpcdl.compression.parts.protocol import Bytes, CompiledCode, check_room, padded
from hpcdl.fabric.comm import Array

WIDEST: Final = 31
"""Largest parameter k."""


class Rice(CompiledCode):
    """Rice code: the quotient by 2^k in unary, then k bits of remainder (Rice 1979; Strom 2015, section 3).

    A message's first byte is k: the largest with ``count`` x 2^k below the sum. For gaps 2^k is then just below
    1 / density. This k costs the fewest bits at worst.
    """

    def bound(self, count: int, total: int) -> int:
        k = parameter(count, total)
        return 1 + (count * (k + 1) + (total >> k) + 7) // 8 if count else 1

    def encode(self, integers: Array, wire: Bytes) -> int:
        total = int(integers.sum(dtype=np.uint64))
        check_room(wire, self.bound(len(integers), total))
        k = parameter(len(integers), total)
        wire[0] = k
        return 1 + int(self._kernels.encode_rice(integers, wire[1:], k))

    def decode(self, message: Bytes, integers: Array) -> None:
        if not len(message) or message[0] > WIDEST:
            raise ValueError("Rice code: no parameter from 0 to 31")
        if not self._kernels.decode_rice(padded(message[1:]), len(message) - 1, int(message[0]), integers):
            raise ValueError(f"Rice code: {len(message)} bytes are not {len(integers)} integers")


def parameter(count: int, total: int) -> int:
    """Return k, 0 to 31, for ``count`` integers with sum ``total``."""
    return min(WIDEST, ((total - 1) // count).bit_length() - 1) if total > count > 0 else 0


class Elias(CompiledCode):
    """Universal code delta of x = integer + 1 (Elias 1975): no parameter, short for small integers.

    With N = floor(log2 x) and M = floor(log2(N + 1)): M zeros, N + 1 in M + 1 bits, then the N lower bits of x.
    """

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


class Words:
    """Code of 32-bit words: an entry's word has its position in 31 bits and its sign (Strom 2015, section 3)."""

    words = True

    def bound(self, count: int, total: int) -> int:
        del total
        return 4 * count

    def encode(self, integers: Array, wire: Bytes) -> int:
        size = 4 * len(integers)
        check_room(wire, size)
        wire[:size] = integers.astype("<u4", copy=False).view(np.uint8)
        return size

    def decode(self, message: Bytes, integers: Array) -> None:
        if len(message) != 4 * len(integers):
            raise ValueError(f"{len(message)} bytes are not {len(integers)} words")
        integers[:] = np.frombuffer(message.tobytes(), "<u4")


OFFERS: Final = {"rice": Rice, "elias": Elias, "words": Words}
