"""Registers layouts for kernels: pixels as rows, weights packed for tiles, images with a border of zeros."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numba import njit

from hpcdl.nn.kernels.numba.tile import VECTORS
from hpcdl.nn.kernels.numba.vectors import REGISTER_BYTES

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array
    from hpcdl.nn.geometry import Shape


def as_pixels(x: Array) -> Array:
    """Return a view of activations (N, ..., C) as (pixels, C); N may be 0."""
    return x.reshape(x.size // x.shape[-1], x.shape[-1])


def panels(terms: int, outputs: int, like: Array) -> Shape:
    """Return the shape of packed weights (panels, terms, width); the width is that of a tile."""
    width = VECTORS * REGISTER_BYTES // like.itemsize
    return -(-outputs // width), terms, width


@njit(nogil=True, cache=True)
def pack(weight: Any, packed: Any) -> None:
    """Pack (groups, K, R S, C) to (groups, panels, R S C, width), with zeros beyond the last filter."""
    groups, filters, taps, channels = weight.shape
    width = packed.shape[3]
    for g in range(groups):
        for panel in range(packed.shape[1]):
            for t in range(taps):
                for begin in range(0, channels, 16):  # small blocks stay in the cache
                    for j in range(width):
                        k = panel * width + j
                        for c in range(begin, min(begin + 16, channels)):
                            packed[g, panel, t * channels + c, j] = weight[g, k, t, c] if k < filters else 0


@njit(nogil=True, cache=True)
def pack_reversed(weight: Any, packed: Any) -> None:
    """Pack (groups, K, R, S, C) to (a, b, groups, panels, R' S' K, width).

    Entry (a, b) has the taps a, a + stride, ... in reverse order.
    """
    groups, filters, kernel_rows, kernel_columns, channels = weight.shape
    vertical, horizontal, _, count, _, width = packed.shape
    for a in range(vertical):
        taps = -(-(kernel_rows - a) // vertical)
        for b in range(horizontal):
            others = -(-(kernel_columns - b) // horizontal)
            for g in range(groups):
                for panel in range(count):
                    for i in range(taps):
                        for j in range(others):
                            r, s = a + vertical * (taps - 1 - i), b + horizontal * (others - 1 - j)
                            for k in range(filters):
                                row = packed[a, b, g, panel, (i * others + j) * filters + k]
                                for n in range(width):
                                    c = panel * width + n
                                    row[n] = weight[g, k, r, s, c] if c < channels else 0


@njit(nogil=True, cache=True)
def copy_to_frame(image: Any, channel: int, frame: Any, top: int, left: int) -> None:
    """Copy an image's channels from ``channel`` on to the inside of a frame; the border is unchanged."""
    height, width, _ = image.shape
    for h in range(height):
        for w in range(width):
            # slices, because numba does not vectorise loops over indices that are sums
            source, to = image[h, w, channel : channel + frame.shape[2]], frame[top + h, left + w]
            for c in range(frame.shape[2]):
                to[c] = source[c]
