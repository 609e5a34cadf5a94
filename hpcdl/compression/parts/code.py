"""Protocol of codes. A file of ``hpcdl/compression/codes`` offers a class that follows it.

A code turns a sequence of integers, 0 to 2^32 - 1, into bytes and back. Integers are gaps between positions,
levels of a quantiser or numbers of clusters. Bits fill a byte from its lowest; zeros fill the last byte.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

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


def most_bits(points: Sequence[tuple[int, int]], count: int, total: int) -> int:
    """Return the most bits of ``count`` integers that sum to at most ``total``.

    ``points`` has the bits of an integer as steps, rising: (least integer, bits). The bound is ``count`` times the
    least concave function above the steps, at the mean of the integers (Jensen's inequality).
    """
    if count == 0:
        return 0
    hull: list[tuple[int, int]] = []
    for x, y in points:
        while len(hull) > 1 and _below(hull[-2], hull[-1], (x, y)):
            hull.pop()
        hull.append((x, y))
    for (x0, y0), (x1, y1) in pairwise(hull):
        if total < x1 * count:
            return (count * y0 * (x1 - x0) + (total - count * x0) * (y1 - y0)) // (x1 - x0)
    return count * hull[-1][1]


def _below(a: tuple[int, int], b: tuple[int, int], c: tuple[int, int]) -> bool:
    """Return True if ``b`` is on or below the line from ``a`` to ``c``."""
    return (b[1] - a[1]) * (c[0] - a[0]) <= (c[1] - a[1]) * (b[0] - a[0])


def padded(message: Bytes) -> Bytes:
    """Return a copy of ``message`` with :data:`PADDING` zero bytes at its end."""
    copy = np.zeros(len(message) + PADDING, np.uint8)
    copy[: len(message)] = message
    return copy


def check_room(wire: Bytes, most: int) -> None:
    """Raise ValueError if ``wire`` is shorter than ``most`` bytes."""
    if len(wire) < most:
        raise ValueError(f"buffer of {len(wire)} bytes is too short: a message may have {most}")
