"""ReLU, sigmoid, sums and concatenation."""

from __future__ import annotations

import math
from itertools import accumulate
from typing import TYPE_CHECKING

from hpcdl.nn.kernels.cupy.device import over, over_rows, room
from hpcdl.nn.precision import carrier

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
        self._kept: tuple[Array, ...] = ()

    def forward(self, x: Array) -> Array:
        """See :class:`hpcdl.nn.ops.Elementary`."""
        self._kept = ()
        y = room(self._device, x, self._dtype)
        self._device.launch("elementwise", "relu_forward", self._dtype, over(x.size), x, y, x.size)
        self._kept = (y,)
        return y

    def backward(self, dy: Array) -> Array:
        """See :class:`hpcdl.nn.ops.Elementary`."""
        (y,), self._kept = self._kept, ()
        return rectified_gradient(self._device, dy, y, self._dtype)


def rectified_gradient(device: Device, dy: Array, y: Array, dtype: str) -> Array:
    """Return dy where y > 0, and 0 elsewhere."""
    dz = room(device, dy, dtype)
    device.launch("elementwise", "rectify", dtype, over(dy.size), dy, y, dz, dy.size)
    return dz


class Sigmoid:
    """y = 1 / (1 + exp(-x)); dx = dy y (1 - y)."""

    def __init__(self, device: Device, geometry: Blob) -> None:
        self._device = device
        self._dtype = geometry.dtype
        self._kept: tuple[Array, ...] = ()

    def forward(self, x: Array) -> Array:
        """See :class:`hpcdl.nn.ops.Elementary`."""
        self._kept = ()
        y = room(self._device, x, self._dtype)
        self._device.launch("elementwise", "sigmoid_forward", self._dtype, over(x.size), x, y, x.size)
        self._kept = (y,)
        return y

    def backward(self, dy: Array) -> Array:
        """See :class:`hpcdl.nn.ops.Elementary`."""
        (y,), self._kept = self._kept, ()
        dx = room(self._device, dy, self._dtype)
        self._device.launch("elementwise", "sigmoid_backward", self._dtype, over(dy.size), dy, y, dx, dy.size)
        return dx


class Addition:
    """Adds blobs of one shape, two at a time."""

    def __init__(self, device: Device, geometry: Blob) -> None:
        self._device = device
        self._dtype = geometry.dtype

    def forward(self, terms: Sequence[Array]) -> Array:
        """See :class:`hpcdl.nn.ops.Addition`."""
        total = terms[0]
        y = room(self._device, total, self._dtype)
        for term in terms[1:]:
            self._device.launch("elementwise", "add", self._dtype, over(y.size), total, term, y, y.size)
            total = y
        return y


class Concatenation:
    """Copies blobs side by side on the last axis, and their gradients apart."""

    def __init__(self, device: Device, geometry: ConcatenationGeometry) -> None:
        self._device = device
        self._dtype = geometry.dtype
        self._shapes = geometry.shapes
        self._offsets = list(accumulate((shape[-1] for shape in geometry.shapes), initial=0))
        self._rows = math.prod(geometry.shapes[0][:-1])

    def forward(self, pieces: Sequence[Array]) -> Array:
        """See :class:`hpcdl.nn.ops.Concatenation`."""
        batch, pitch = len(pieces[0]), self._offsets[-1]
        y = self._device.empty((batch, *self._shapes[0][:-1], pitch), carrier(self._dtype))
        for piece, offset in zip(pieces, self._offsets, strict=False):
            width = piece.shape[-1]
            self._copy(piece, y, batch, width, from_pitch=width, from_offset=0, to_pitch=pitch, to_offset=offset)
        return y

    def backward(self, dy: Array) -> list[Array]:
        """See :class:`hpcdl.nn.ops.Concatenation`."""
        batch, pitch = len(dy), self._offsets[-1]
        pieces = [self._device.empty((batch, *shape), carrier(self._dtype)) for shape in self._shapes]
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
            over_rows(rows, width, self._dtype),
            source,
            target,
            rows,
            width,
            from_pitch,
            from_offset,
            to_pitch,
            to_offset,
        )
