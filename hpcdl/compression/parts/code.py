"""Protocol of codes. A file of ``hpcdl/compression/codes`` offers a class that follows it.

A code turns a sequence of integers, 0 to 2^32 - 1, into bytes and back. Integers are gaps between positions,
levels of a quantiser or numbers of clusters. Bits fill a byte from its lowest; zeros fill the last byte.
"""

from typing import Final, Protocol

import numpy as np

from hpcdl.compression.parts.protocol import Bytes
from hpcdl.fabric.comm import Array


def entropy(integers: Array) -> float:
    """Return the bits per integer of an ideal code of this distribution of values (Shannon 1948)."""
    counts = np.unique(integers, return_counts=True)[1]
    shares = counts / max(1, len(integers))
    return float(-(shares * np.log2(shares)).sum())


PADDING: Final = 16
"""Zero bytes after a message, so that kernels need not check its end before each read."""
LARGEST: Final = (1 << 32) - 1
"""Largest integer."""


class Code(Protocol):
    """A code of sequences of integers. Its keyword-only parameters are settings of a suite."""

    words: bool
    """Takes an entry's position and sign as one integer, 2 x position + sign, instead of gaps."""

    def bound(self, count: int, total: int) -> int:
        """Return the most bytes of at most ``count`` integers that sum to at most ``total``."""
        ...

    def encode(self, integers: Array, wire: Bytes) -> int:
        """Write ``integers``, uint32 (count,), to ``wire``, (bound,); return the bytes.

        Raises ValueError if ``wire`` is too short.
        """
        ...

    def decode(self, message: Bytes, integers: Array) -> None:
        """Fill ``integers``, uint32 (count,), from the whole ``message``.

        Raises ValueError for a message that cannot have been encoded from ``count`` integers. ``integers`` then
        has no meaning.
        """
        ...


def padded(message: Bytes) -> Bytes:
    """Return a copy of ``message`` with :data:`PADDING` zero bytes at its end."""
    copy = np.zeros(len(message) + PADDING, np.uint8)
    copy[: len(message)] = message
    return copy


def check_room(wire: Bytes, most: int) -> None:
    """Raise ValueError if ``wire`` is shorter than ``most`` bytes."""
    if len(wire) < most:
        raise ValueError(f"buffer of {len(wire)} bytes is too short: a message may have {most}")
