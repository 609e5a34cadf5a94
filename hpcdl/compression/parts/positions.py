"""Positions of entries as gaps and bitmaps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hpcdl.compression.parts.device import kernels

if TYPE_CHECKING:
    from hpcdl.compression.parts.device import Device
    from hpcdl.compression.parts.protocol import Bytes, Sparse
    from hpcdl.fabric.comm import Array


def subset(count: int, length: int, seed: int) -> Array:
    """Return ``count`` of the positions 0 to ``length`` - 1, int32, rising; all subsets are equally likely.

    Positions are drawn until enough are different; of more than half of them, those left out are drawn.
    """
    from hpcdl.compression.kernels import draws  # late: listing compressors must not load numba

    found = np.empty(count, np.int32)
    draws.subset(found, length, np.uint64(seed))
    return found


def gaps(indices: Array) -> Array:
    """Return the zeros before each of rising positions, uint32: of 0, 1, 5 they are 0, 0, 3."""
    ahead = indices.astype(np.uint32)
    ahead[1:] -= ahead[:-1].copy() + np.uint32(1)
    return ahead


def take(vector: Array, indices: Array, device: Device | None) -> Array:
    """Return the entries of a vector on ``device``; positions and values are on the host."""
    return kernels(device, "positions").take(vector, indices)  # type: ignore[no-any-return]


def put(found: Sparse, into: Array, device: Device | None) -> None:
    """Write the entries, which are on the host, to the vector ``into`` on ``device``."""
    kernels(device, "positions").put(found.indices, found.values, into)


def add(found: Sparse, into: Array, device: Device | None) -> None:
    """Add the entries, which are on the host, to the vector ``into`` on ``device``."""
    kernels(device, "positions").add(found.indices, found.values, into)


def bitmap_of(indices: Array, length: int) -> Bytes:
    """Return one bit per position of a vector of ``length``, the first lowest; set at ``indices``."""
    from hpcdl.compression.kernels import positions  # late: listing compressors must not load numba

    marks = np.zeros((length + 7) // 8, np.uint8)
    positions.mark(indices, marks)
    return marks


def unpacked(bits: Bytes, count: int) -> Array:
    """Return ``count`` bits, bool. Raises ValueError if a bit behind them is set."""
    found = np.unpackbits(bits, bitorder="little").view(bool)
    if found[count:].any():
        raise ValueError(f"a bit is set behind {count}")
    return found[:count]


def rising(ahead: Array, length: int, indices: Array) -> bool:
    """Fill ``indices``, int32, from gaps, uint32; return False if a position is not below ``length``."""
    from hpcdl.compression.kernels import positions  # late: listing compressors must not load numba

    return bool(positions.rising(ahead, length, indices))
