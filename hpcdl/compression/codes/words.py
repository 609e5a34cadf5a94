"""Strom's words: 32 bits per integer."""

from __future__ import annotations

import numpy as np

from hpcdl.compression.parts.code import check_room
from hpcdl.compression.parts.protocol import Bytes
from hpcdl.fabric.comm import Array


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
