"""Locally connected layer: a matrix product per position."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hpcdl.nn.kernels.cupy.affine import ParameterCopy
from hpcdl.nn.kernels.cupy.device import grid_over, grid_over_rows
from hpcdl.nn.kernels.cupy.elementwise import channel_sum, rectified_gradient
from hpcdl.nn.precision import storage_dtype

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array
    from hpcdl.nn.geometry import LocallyConnectedGeometry
    from hpcdl.nn.kernels.cupy.device import Device


class LocallyConnected:
    """At each position, over the batch: y = windows @ weight^T; all positions in one batched product."""

    def __init__(self, device: Device, geometry: LocallyConnectedGeometry) -> None:
        self._device = device
        self._geometry = g = geometry
        self._positions = math.prod(g.output[:2])
        self._span = math.prod(g.kernel) * g.image[2]
        self._sizes = (*g.image, *g.output[:2], *g.kernel, *g.stride, *g.padding, 0, g.image[2])
        self._weight_copy = ParameterCopy(device, g.dtype)
        self._saved: tuple[Array, ...] = ()

    def forward(self, x: Array, weight: Array, bias: Array | None) -> Array:
        """See :class:`hpcdl.nn.ops.Affine`."""
        g, device = self._geometry, self._device
        self._saved = ()
        y = device.empty((len(x), *g.output), storage_dtype(g.dtype))
        device.multiply(
            *(
                self._by_position(self._columns(x)),
                self._matrices(self._weight_copy.current(weight)),
                self._by_position(y),
            ),
            *(g.dtype,),
            transpose_a=False,
            transpose_b=True,
        )
        if bias is not None or g.relu:
            outputs = math.prod(g.output)
            device.launch(
                *("elementwise", "bias_relu", g.dtype, grid_over_rows(len(x), outputs, g.dtype)),
                *(y, bias, len(x), outputs, int(g.relu)),
            )
        self._saved = (x, y)
        return y

    def backward(
        self, dy: Array, weight: Array, dweight: Array, dbias: Array | None, needs_dx: bool
    ) -> Array | None:
        """See :class:`hpcdl.nn.ops.Affine`."""
        (x, y), self._saved = self._saved, ()
        g, device = self._geometry, self._device
        dz = rectified_gradient(device, dy, y, g.dtype) if g.relu else dy
        if dbias is not None:
            channel_sum(device, dz.reshape(len(dz), math.prod(g.output)), g.dtype, dbias)
        columns, gradient = self._columns(x), self._by_position(dz)
        device.multiply(
            gradient,
            self._by_position(columns),
            self._matrices(dweight),
            g.dtype,
            transpose_a=True,
            transpose_b=False,
        )
        if not needs_dx:
            return None
        dx = device.empty(x.shape, storage_dtype(g.dtype))
        filters = self._matrices(self._weight_copy.current(weight))
        device.multiply(
            gradient, filters, self._by_position(columns), g.dtype, transpose_a=False, transpose_b=False
        )
        device.launch("windows", "scatter_windows", g.dtype, grid_over(dx.size), columns, dx, len(x), *self._sizes)
        return dx

    def _columns(self, x: Array) -> Array:
        """Copy the windows of all positions to (N, P Q, R S C)."""
        dtype = self._geometry.dtype
        columns = self._device.empty((len(x), self._positions, self._span), storage_dtype(dtype))
        self._device.launch(
            "windows", "gather_windows", dtype, grid_over(columns.size), x, columns, len(x), *self._sizes
        )
        return columns

    def _by_position(self, images: Array) -> Array:
        """Return a view of images or windows (N, P, Q, F) as (P Q, N, F)."""
        return images.reshape(len(images), self._positions, images.shape[-1]).swapaxes(0, 1)

    def _matrices(self, weight: Array) -> Array:
        """Return a view of the weights as (P Q, K, R S C)."""
        return weight.reshape(self._positions, self._geometry.output[2], self._span)
