"""Sections of a message: arrays as they are, and integers of a fixed length or in an entropy code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from hpcdl.compression.parts.checks import check_padding, check_values

if TYPE_CHECKING:
    import numpy.typing as npt

    from hpcdl.compression.parts.code import Code
    from hpcdl.compression.parts.protocol import Bytes
    from hpcdl.fabric.comm import Array

LENGTH: Final = np.dtype("<u4")
"""Type of the length of a coded section."""


def most_bytes(count: int, total: int, bits: int, code: Code | None) -> int:
    """Return the most bytes of ``count`` integers of ``bits`` bits whose sum is at most ``total``."""
    return (count * bits + 7) // 8 if code is None else LENGTH.itemsize + code.bound(count, total)


class Writer:
    """Writes sections to ``wire``, one after the other; without a ``code``, integers have a fixed length."""

    def __init__(self, wire: Bytes, code: Code | None) -> None:
        self.used = 0
        """Bytes written."""
        self._wire = wire
        self._code = code

    def raw(self, array: Array) -> None:
        """Write an array unchanged."""
        self._wire[self.used : self.used + array.nbytes] = array.view(np.uint8)
        self.used += array.nbytes

    def integers(self, numbers: Array, bits: int) -> None:
        """Write integers, uint32 (n,), of ``bits`` bits, at most 8."""
        if self._code is None:
            ones = (numbers.astype(np.uint8)[:, None] >> np.arange(bits, dtype=np.uint8)) & 1
            self.raw(np.packbits(ones, bitorder="little"))
            return
        start = self.used + LENGTH.itemsize
        length = self._code.encode(numbers, self._wire[start:])
        self.raw(np.array([length], LENGTH))
        self.used += length

    def positions(self, positions: Array, size: int) -> None:
        """Write rising positions below ``size``: a bitmap, or the code of the gaps between them."""
        if self._code is None:
            present = np.zeros(size, np.uint32)
            present[positions] = 1
            self.integers(present, 1)
        else:
            self.integers((np.diff(positions, prepend=-1) - 1).astype(np.uint32), 0)


class Reader:
    """Reads the sections of a message in the order in which they were written.

    All methods raise ValueError for a message that no :class:`Writer` has written.
    """

    def __init__(self, message: Bytes, code: Code | None) -> None:
        self._message = message
        self._code = code
        self._at = 0

    def raw(self, count: int, dtype: npt.DTypeLike) -> Array:
        """Return an array (count,)."""
        return self._take(count * np.dtype(dtype).itemsize).view(dtype)

    def integers(self, count: int, bits: int) -> Array:
        """Return integers, uint32 (count,)."""
        numbers = np.zeros(count, np.uint32)
        if self._code is not None:
            self._code.decode(self._take(int(self.raw(1, LENGTH)[0])), numbers)
            return numbers
        packed = self._take((count * bits + 7) // 8)
        check_padding(packed, count * bits)
        ones = np.unpackbits(packed, count=count * bits, bitorder="little").reshape(count, bits)
        for bit in range(bits):
            numbers |= ones[:, bit].astype(np.uint32) << np.uint32(bit)
        return numbers

    def positions(self, count: int, size: int) -> Array:
        """Return ``count`` positions, rising, below ``size``."""
        if self._code is None:
            found = np.flatnonzero(self.integers(size, 1))
            check_values(np.array(len(found) == count))
            return found
        positions = np.cumsum(self.integers(count, 0).astype(np.int64) + 1) - 1
        check_values(positions[-1:] < size)
        return positions

    def end(self) -> None:
        """Raise ValueError if anything follows."""
        check_values(np.array(self._at == len(self._message)))

    def _take(self, length: int) -> Bytes:
        check_values(np.array(self._at + length <= len(self._message)))
        self._at += length
        return self._message[self._at - length : self._at].copy()
