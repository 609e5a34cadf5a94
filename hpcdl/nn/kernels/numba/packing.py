"""Memory as kernels read it: pixels in a row, weights side by side for a tile, images in a frame of zeros."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numba import njit

from hpcdl.nn.kernels.numba.tile import VECTORS
from hpcdl.nn.kernels.numba.vectors import REGISTER_BYTES

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array
    from hpcdl.nn.geometry import Shape


def as_pixels(x: Array) -> Array:
    """View activations (N, ..., C) as (pixels, C); there may be none."""
    return x.reshape(x.size // x.shape[-1], x.shape[-1])


def panels(terms: int, outputs: int, like: Array) -> Shape:
    """Shape of packed weights (panels, terms, width): a tile's width of outputs side by side, for each term."""
    width = VECTORS * REGISTER_BYTES // like.itemsize
    return -(-outputs // width), terms, width


@njit(nogil=True, cache=True)
def pack(weight: Any, packed: Any) -> None:
    """(groups, K, R S, C) to (groups, panels, R S C, width), zeros beyond the last filter."""
    groups, filters, taps, channels = weight.shape
    width = packed.shape[3]
    for g in range(groups):
        for panel in range(packed.shape[1]):
            for t in range(taps):
                for begin in range(0, channels, 16):  # pieces that are read and written within the cache
                    for j in range(width):
                        k = panel * width + j
                        for c in range(begin, min(begin + 16, channels)):
                            packed[g, panel, t * channels + c, j] = weight[g, k, t, c] if k < filters else 0


@njit(nogil=True, cache=True)
def pack_reversed(weight: Any, packed: Any) -> None:
    """(groups, K, R, S, C) to (a, b, groups, panels, R' S' K, width): taps a, a + stride, ... last one first."""
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
def put(image: Any, channel: int, frame: Any, top: int, left: int) -> None:
    """Copy an image's channels from ``channel`` on into the middle of a frame, whose border stays."""
    height, width, _ = image.shape
    for h in range(height):
        for w in range(width):
            # An index that is a sum may be negative to numba, and then no loop becomes vectors.
            source, to = image[h, w, channel : channel + frame.shape[2]], frame[top + h, left + w]
            for c in range(frame.shape[2]):
                to[c] = source[c]
