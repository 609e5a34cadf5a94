"""Sums per channel, in a fixed order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hpcdl.nn.kernels.cupy.device import grid_over_rows
from hpcdl.nn.precision import master

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array
    from hpcdl.nn.kernels.cupy.device import Device

MAX_THREADS: Final = 1 << 18
"""Threads that saturate the memory of a large GPU: 132 multiprocessors of 2048."""

GROUP: Final = 32
"""Smallest number of rows per thread."""


def groups_of(rows: int, channels: int) -> int:
    """Return the number of groups that rows are divided into, one thread per group and channel."""
    return max(1, min(-(-rows // GROUP), MAX_THREADS // channels))


def channel_sum(device: Device, x: Array, dtype: str, out: Array) -> None:
    """Set ``out`` (C,), in master precision, to the sum of ``x`` (..., C) over all axes except channels."""
    channels = x.shape[-1]
    rows = x.size // channels
    groups = groups_of(rows, channels)
    sums = out if groups == 1 else device.empty((groups, channels), master(dtype))
    grid = grid_over_rows(groups, channels, dtype)
    device.launch("sums", "sum_activations", dtype, grid, x, sums, rows, channels, groups)
    while groups > 1:
        sums, groups = fold(device, sums, groups, channels, dtype, out)


def fold(device: Device, sums: Array, rows: int, channels: int, dtype: str, out: Array) -> tuple[Array, int]:
    """Sum partial sums (rows, C) to fewer, in the end to ``out``; return them and their number."""
    groups = 1 if rows <= GROUP else -(-rows // GROUP)
    folded = out if groups == 1 else device.empty((groups, channels), master(dtype))
    grid = grid_over_rows(groups, channels, dtype)
    device.launch("sums", "sum_partial", dtype, grid, sums, folded, rows, channels, groups)
    return folded, groups
