"""Locally connected layer: a matrix product per position."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hpcdl.nn.kernels.cupy.device import over, over_rows
from hpcdl.nn.kernels.cupy.elementwise import rectified_gradient
from hpcdl.nn.kernels.cupy.parameters import Shadow
from hpcdl.nn.kernels.cupy.sums import channel_sum
from hpcdl.nn.precision import carrier

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array
    from hpcdl.nn.geometry import LocallyConnectedGeometry
    from hpcdl.nn.kernels.cupy.device import Device


class LocallyConnected:
    """For each position, over the batch: y = windows @ weight^T; all positions in one batched product."""

    def __init__(self, device: Device, geometry: LocallyConnectedGeometry) -> None:
        self._device = device
        self._geometry = g = geometry
        self._positions = math.prod(g.output[:2])
        self._span = math.prod(g.kernel) * g.image[2]
        self._sizes = (*g.image, *g.output[:2], *g.kernel, *g.stride, *g.padding, 0, g.image[2])
        self._shadow = Shadow(device, g.dtype)
        self._kept: tuple[Array, ...] = ()

    def forward(self, x: Array, weight: Array, bias: Array | None) -> Array:
        """See :class:`hpcdl.nn.ops.Affine`."""
        g, device = self._geometry, self._device
        self._kept = ()
        y = device.empty((len(x), *g.output), carrier(g.dtype))
        device.multiply(
            *(self._apart(self._columns(x)), self._matrices(self._shadow.of(weight)), self._apart(y)),
            *(g.dtype,),
            turn_a=False,
            turn_b=True,
        )
        if bias is not None or g.relu:
            outputs = math.prod(g.output)
            device.launch(
                *("elementwise", "bias_relu", g.dtype, over_rows(len(x), outputs, g.dtype)),
                *(y, bias, len(x), outputs, int(g.relu)),
            )
        self._kept = (x, y)
        return y

    def backward(
        self, dy: Array, weight: Array, dweight: Array, dbias: Array | None, wanted: bool
    ) -> Array | None:
        """See :class:`hpcdl.nn.ops.Affine`."""
        (x, y), self._kept = self._kept, ()
        g, device = self._geometry, self._device
        dz = rectified_gradient(device, dy, y, g.dtype) if g.relu else dy
        if dbias is not None:
            channel_sum(device, dz.reshape(len(dz), math.prod(g.output)), g.dtype, dbias)
        columns, gradient = self._columns(x), self._apart(dz)
        device.multiply(
            gradient, self._apart(columns), self._matrices(dweight), g.dtype, turn_a=True, turn_b=False
        )
        if not wanted:
            return None
        dx = device.empty(x.shape, carrier(g.dtype))
        filters = self._matrices(self._shadow.of(weight))
        device.multiply(gradient, filters, self._apart(columns), g.dtype, turn_a=False, turn_b=False)
        device.launch("windows", "scatter_windows", g.dtype, over(dx.size), columns, dx, len(x), *self._sizes)
        return dx

    def _columns(self, x: Array) -> Array:
        """Copy the windows of all positions: (N, P Q, R S C)."""
        dtype = self._geometry.dtype
        columns = self._device.empty((len(x), self._positions, self._span), carrier(dtype))
        self._device.launch(
            "windows", "gather_windows", dtype, over(columns.size), x, columns, len(x), *self._sizes
        )
        return columns

    def _apart(self, images: Array) -> Array:
        """View images or windows (N, P, Q, F) by position, (P Q, N, F)."""
        return images.reshape(len(images), self._positions, images.shape[-1]).swapaxes(0, 1)

    def _matrices(self, weight: Array) -> Array:
        """View weights by position, (P Q, K, R S C)."""
        return weight.reshape(self._positions, self._geometry.output[2], self._span)
