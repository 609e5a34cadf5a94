"""Sections of a message: arrays as they are, and integers of a fixed length or coded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hpcdl.compression.parts.checks import check_padding, check_values

if TYPE_CHECKING:
    from hpcdl.compression.parts.code import Code
    from hpcdl.compression.parts.protocol import Bytes
    from hpcdl.fabric.comm import Array

LENGTH: Final = 4
"""Bytes of the length of a coded section."""


def most(count: int, largest: int, total: int, bits: int, code: Code | None) -> int:
    """Return the most bytes of ``count`` integers up to ``largest``, with at most this sum."""
    if code is None:
        return (count * bits + 7) // 8
    return LENGTH + code.bound(count, total)


class Writer:
    """Writes sections to ``wire``, one after the other; without a ``code``, integers have a fixed length."""

    def __init__(self, wire: Bytes, code: Code | None) -> None:
        self.used = 0
        """Bytes written."""
        self._wire = wire
        self._code = code

    def raw(self, array: Array) -> None:
        """Write an array as it is."""
        self._wire[self.used : self.used + array.nbytes] = np.ascontiguousarray(array).view(np.uint8)
        self.used += array.nbytes
