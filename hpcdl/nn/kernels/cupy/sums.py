"""Sums per channel, in a fixed order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hpcdl.nn.kernels.cupy.device import over_rows
from hpcdl.nn.precision import master

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array
    from hpcdl.nn.kernels.cupy.device import Device

ENOUGH: Final = 1 << 18
"""Threads that keep a large GPU's memory busy: 132 multiprocessors of 2048."""

GROUP: Final = 32
"""Rows that are worth a thread of their own."""


def groups_of(rows: int, channels: int) -> int:
    """Into how many groups rows are best divided."""
    return max(1, min(-(-rows // GROUP), ENOUGH // channels))


def channel_sum(device: Device, x: Array, dtype: str, out: Array) -> None:
    """Set ``out`` (C,), of the masters' precision, to the sum of ``x`` (..., C) over all but channels."""
    channels = x.shape[-1]
    rows = x.size // channels
    groups = groups_of(rows, channels)
    sums = out if groups == 1 else device.empty((groups, channels), master(dtype))
    spread = over_rows(groups, channels, dtype)
    device.launch("sums", "sum_activations", dtype, spread, x, sums, rows, channels, groups)
    while groups > 1:
        sums, groups = fold(device, sums, groups, channels, dtype, out)


def fold(device: Device, sums: Array, rows: int, channels: int, dtype: str, out: Array) -> tuple[Array, int]:
    """Sum partial sums (rows, C) into fewer, or into ``out`` if few; return them and how many they are."""
    groups = 1 if rows <= GROUP else -(-rows // GROUP)
    folded = out if groups == 1 else device.empty((groups, channels), master(dtype))
    spread = over_rows(groups, channels, dtype)
    device.launch("sums", "sum_partial", dtype, spread, sums, folded, rows, channels, groups)
    return folded, groups
