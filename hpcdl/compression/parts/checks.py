"""Refusals of values and messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from hpcdl.compression.parts.protocol import Bytes
    from hpcdl.fabric.comm import Array


def check_finite(finite: bool | np.bool_) -> None:
    """Raise FloatingPointError unless ``finite``."""
    if not finite:
        raise FloatingPointError("the gradient has a value that is infinite, too large, or not a number")


def check_length(message: Bytes, length: int) -> None:
    """Raise ValueError if a message has not ``length`` bytes."""
    if len(message) != length:
        raise ValueError(f"corrupt message: {len(message)} bytes instead of {length}")


def check_padding(packed: Bytes, bits: int) -> None:
    """Raise ValueError if bits of the last byte after the first ``bits`` of all are set."""
    if bits % 8 and packed[-1] >> bits % 8:
        raise ValueError("corrupt message: bits are set after the last entry")


def check_values(valid: Array) -> None:
    """Raise ValueError unless all of ``valid`` are true."""
    if not np.all(valid):
        raise ValueError("corrupt message: an impossible value")
