"""Convolution as matrix products, where cuDNN has no engine: float64."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hpcdl.nn.kernels.cupy.device import over, over_rows
from hpcdl.nn.kernels.cupy.elementwise import rectified_gradient
from hpcdl.nn.kernels.cupy.parameters import Shadow
from hpcdl.nn.kernels.cupy.sums import channel_sum
from hpcdl.nn.precision import carrier

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpcdl.fabric.comm import Array
    from hpcdl.nn.geometry import ConvolutionGeometry
    from hpcdl.nn.kernels.cupy.device import Device


class Windows:
    """Any convolution (Chellapilla et al. 2006): y = windows @ weight^T, one product per group."""

    def __init__(self, device: Device, geometry: ConvolutionGeometry) -> None:
        self._device = device
        self._geometry = g = geometry
        self._share = g.image[2] // g.groups
        self._filters = g.output[2] // g.groups
        self._span = math.prod(g.kernel) * self._share
        self._sizes = (*g.image, *g.output[:2], *g.kernel, *g.stride, *g.padding)
        self._shadow = Shadow(device, g.dtype)
        self._kept: tuple[Array, ...] = ()

    def forward(self, x: Array, weight: Array, bias: Array | None) -> Array:
        """See :class:`hpcdl.nn.ops.Affine`."""
        g, device = self._geometry, self._device
        self._kept = ()
        y = device.empty((len(x), *g.output), carrier(g.dtype))
        filters = self._shadow.of(weight).reshape(g.output[2], self._span)
        outputs = y.reshape(-1, g.output[2])
        for group, rows in self._groups():
            device.multiply(
                self._columns(x, group), filters[rows], outputs[:, rows], g.dtype, turn_a=False, turn_b=True
            )
        if bias is not None or g.relu:
            spread = over_rows(len(outputs), g.output[2], g.dtype)
            device.launch(
                *("elementwise", "bias_relu", g.dtype, spread, y, bias, len(outputs), g.output[2], int(g.relu))
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
            channel_sum(device, dz, g.dtype, dbias)
        dx = device.empty(x.shape, carrier(g.dtype)) if wanted else None
        gradient = dz.reshape(-1, g.output[2])
        filters = self._shadow.of(weight).reshape(g.output[2], self._span)
        for group, rows in self._groups():
            columns = self._columns(x, group)
            landed = dweight.reshape(g.output[2], self._span)[rows]
            device.multiply(gradient[:, rows], columns, landed, g.dtype, turn_a=True, turn_b=False)
            if dx is not None:
                device.multiply(gradient[:, rows], filters[rows], columns, g.dtype, turn_a=False, turn_b=False)
                device.launch(
                    *("windows", "scatter_windows", g.dtype, over(dx.size), columns, dx, len(x), *self._sizes),
                    *(group * self._share, self._share),
                )
        return dx

    def _columns(self, x: Array, group: int) -> Array:
        g = self._geometry
        columns = self._device.empty((len(x) * math.prod(g.output[:2]), self._span), carrier(g.dtype))
        self._device.launch(
            *("windows", "gather_windows", g.dtype, over(columns.size), x, columns, len(x), *self._sizes),
            *(group * self._share, self._share),
        )
        return columns

    def _groups(self) -> Iterator[tuple[int, slice]]:
        for group in range(self._geometry.groups):
            yield group, slice(group * self._filters, (group + 1) * self._filters)
