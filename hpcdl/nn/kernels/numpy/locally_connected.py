"""Locally connected layer: a matrix product per position."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from hpcdl.nn.geometry import PoolingGeometry
from hpcdl.nn.kernels.numpy.activation_pool import allocate
from hpcdl.nn.kernels.numpy.pooling import Frame

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpcdl.fabric.comm import Array
    from hpcdl.nn.geometry import LocallyConnectedGeometry

CHUNK_BYTES = 1 << 22
"""Bytes of windows copied at a time; large, because each chunk reads its weights once for the whole batch."""


class LocallyConnected:
    """At each position (p, q), over the batch: y = windows @ weight^T, a product (N, R S C) by (R S C, K).

    Chunks are whole rows of positions. Backward copies the windows again: dweight = dy^T @ windows, dwindows =
    dy @ weight, which is added to the pixels of each window.
    """

    def __init__(self, geometry: LocallyConnectedGeometry) -> None:
        self._geometry = geometry
        self._span = math.prod(geometry.kernel) * geometry.image[2]
        placed = PoolingGeometry(
            geometry.image,
            (*geometry.output[:2], geometry.image[2]),
            geometry.kernel,
            geometry.stride,
            geometry.padding,
            geometry.dtype,
        )
        self._frame = Frame(placed, 0.0)
        self._saved: tuple[Array, ...] = ()

    def forward(self, x: Array, weight: Array, bias: Array | None) -> Array:
        """See :class:`hpcdl.nn.ops.Affine`."""
        self._saved = (framed := self._frame.put(x),)
        y = allocate((len(x), *self._geometry.output), x.dtype)
        for rows in self._chunks(len(x)):
            windows = self._gather(framed, rows)
            out = allocate((*windows.shape[:3], weight.shape[2]), x.dtype)
            np.matmul(windows, _matrix(weight[rows]).swapaxes(2, 3), out=out)
            y[:, rows] = np.moveaxis(out, 2, 0)
        if bias is not None:
            y += bias
        return y

    def backward(
        self, dy: Array, weight: Array, dweight: Array, dbias: Array | None, needs_dx: bool
    ) -> Array | None:
        """See :class:`hpcdl.nn.ops.Affine`."""
        (framed,), self._saved = self._saved, ()
        if dbias is not None:
            np.sum(dy, axis=0, out=dbias)
        dframed = self._frame.empty(len(dy)) if needs_dx else None
        for rows in self._chunks(len(dy)):
            windows = self._gather(framed, rows)
            gradient = allocate((*windows.shape[:3], dy.shape[-1]), dy.dtype)
            gradient[...] = np.moveaxis(dy[:, rows], 0, 2)
            np.matmul(gradient.swapaxes(2, 3), windows, out=_matrix(dweight[rows]))
            if dframed is not None:
                np.matmul(gradient, _matrix(weight[rows]), out=windows)
                self._scatter(windows, dframed, rows)
        return None if dframed is None else self._frame.take(dframed)

    def _chunks(self, batch: int) -> Iterator[slice]:
        """Yield slices of output rows whose windows fit into CHUNK_BYTES."""
        rows, columns, _ = self._geometry.output
        row_bytes = max(batch, 1) * columns * self._span * np.dtype(self._geometry.dtype).itemsize
        step = max(CHUNK_BYTES // row_bytes, 1)
        for start in range(0, rows, step):
            yield slice(start, min(start + step, rows))

    def _gather(self, framed: Array, rows: slice) -> Array:
        """Copy the windows of some rows: (rows, Q, N, R S C)."""
        shape = (rows.stop - rows.start, self._geometry.output[1], len(framed))
        windows = allocate((*shape, self._span), framed.dtype)
        for offset, pixels in zip(self._offsets(windows), self._frame.offsets(framed), strict=True):
            offset[...] = np.moveaxis(pixels[:, rows], 0, 2)
        return windows

    def _scatter(self, windows: Array, framed: Array, rows: slice) -> None:
        """Add windows to their pixels; windows overlap, but pixels of one offset are distinct."""
        for offset, pixels in zip(self._offsets(windows), self._frame.offsets(framed), strict=True):
            into = pixels[:, rows]
            into += np.moveaxis(offset, 2, 0)

    def _offsets(self, windows: Array) -> Iterator[Array]:
        """Yield, for each offset within the window, the pixel of every window: views (rows, Q, N, C)."""
        channels = self._geometry.image[2]
        for start in range(0, self._span, channels):
            yield windows[..., start : start + channels]


def _matrix(weight: Array) -> Array:
    """Return the filters of each position as rows, (rows, Q, K, R S C): a view."""
    return weight.reshape(*weight.shape[:3], -1)
