"""ReLU, sigmoid, sums and concatenation."""

from __future__ import annotations

import math
from itertools import accumulate
from typing import TYPE_CHECKING

from hpcdl.nn.kernels.cupy.device import empty_like, grid_over, grid_over_rows
from hpcdl.nn.precision import storage_dtype

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.fabric.comm import Array
    from hpcdl.nn.geometry import Blob, ConcatenationGeometry
    from hpcdl.nn.kernels.cupy.device import Device


class ReLU:
    """y = max(x, 0); dx = dy where y > 0."""

    def __init__(self, device: Device, geometry: Blob) -> None:
        self._device = device
        self._dtype = geometry.dtype
        self._saved: tuple[Array, ...] = ()

    def forward(self, x: Array) -> Array:
        """See :class:`hpcdl.nn.ops.Elementary`."""
        self._saved = ()
        y = empty_like(self._device, x, self._dtype)
        self._device.launch("elementwise", "relu_forward", self._dtype, grid_over(x.size), x, y, x.size)
        self._saved = (y,)
        return y

    def backward(self, dy: Array) -> Array:
        """See :class:`hpcdl.nn.ops.Elementary`."""
        (y,), self._saved = self._saved, ()
        return rectified_gradient(self._device, dy, y, self._dtype)


def rectified_gradient(device: Device, dy: Array, y: Array, dtype: str) -> Array:
    """Return dy where y > 0, otherwise 0."""
    dz = empty_like(device, dy, dtype)
    device.launch("elementwise", "rectify", dtype, grid_over(dy.size), dy, y, dz, dy.size)
    return dz


class Sigmoid:
    """y = 1 / (1 + exp(-x)); dx = dy y (1 - y)."""

    def __init__(self, device: Device, geometry: Blob) -> None:
        self._device = device
        self._dtype = geometry.dtype
        self._saved: tuple[Array, ...] = ()

    def forward(self, x: Array) -> Array:
        """See :class:`hpcdl.nn.ops.Elementary`."""
        self._saved = ()
        y = empty_like(self._device, x, self._dtype)
        self._device.launch("elementwise", "sigmoid_forward", self._dtype, grid_over(x.size), x, y, x.size)
        self._saved = (y,)
        return y

    def backward(self, dy: Array) -> Array:
        """See :class:`hpcdl.nn.ops.Elementary`."""
        (y,), self._saved = self._saved, ()
        dx = empty_like(self._device, dy, self._dtype)
        self._device.launch("elementwise", "sigmoid_backward", self._dtype, grid_over(dy.size), dy, y, dx, dy.size)
        return dx


class Addition:
    """Add blobs of one shape, two at a time."""

    def __init__(self, device: Device, geometry: Blob) -> None:
        self._device = device
        self._dtype = geometry.dtype

    def forward(self, terms: Sequence[Array]) -> Array:
        """See :class:`hpcdl.nn.ops.Addition`."""
        total = terms[0]
        y = empty_like(self._device, total, self._dtype)
        for term in terms[1:]:
            self._device.launch("elementwise", "add", self._dtype, grid_over(y.size), total, term, y, y.size)
            total = y
        return y


class Concatenation:
    """Concatenate blobs along the last axis; split their gradients."""

    def __init__(self, device: Device, geometry: ConcatenationGeometry) -> None:
        self._device = device
        self._dtype = geometry.dtype
        self._shapes = geometry.shapes
        self._offsets = list(accumulate((shape[-1] for shape in geometry.shapes), initial=0))
        self._rows = math.prod(geometry.shapes[0][:-1])

    def forward(self, pieces: Sequence[Array]) -> Array:
        """See :class:`hpcdl.nn.ops.Concatenation`."""
        batch, pitch = len(pieces[0]), self._offsets[-1]
        y = self._device.empty((batch, *self._shapes[0][:-1], pitch), storage_dtype(self._dtype))
        for piece, offset in zip(pieces, self._offsets, strict=False):
            width = piece.shape[-1]
            self._copy(piece, y, batch, width, from_pitch=width, from_offset=0, to_pitch=pitch, to_offset=offset)
        return y

    def backward(self, dy: Array) -> list[Array]:
        """See :class:`hpcdl.nn.ops.Concatenation`."""
        batch, pitch = len(dy), self._offsets[-1]
        pieces = [self._device.empty((batch, *shape), storage_dtype(self._dtype)) for shape in self._shapes]
        for piece, offset in zip(pieces, self._offsets, strict=False):
            width = piece.shape[-1]
            self._copy(dy, piece, batch, width, from_pitch=pitch, from_offset=offset, to_pitch=width, to_offset=0)
        return pieces

    def _copy(
        self,
        source: Array,
        target: Array,
        batch: int,
        width: int,
        *,
        from_pitch: int,
        from_offset: int,
        to_pitch: int,
        to_offset: int,
    ) -> None:
        rows = batch * self._rows
        self._device.launch(
            "elementwise",
            "copy_columns",
            self._dtype,
            grid_over_rows(rows, width, self._dtype),
            source,
            target,
            rows,
            width,
            from_pitch,
            from_offset,
            to_pitch,
            to_offset,
        )
