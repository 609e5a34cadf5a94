"""Convolution as matrix products for float64, which cuDNN does not support."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hpcdl.nn.kernels.cupy.device import grid_over, grid_over_rows
from hpcdl.nn.kernels.cupy.elementwise import rectified_gradient
from hpcdl.nn.kernels.cupy.parameters import ParameterCopy
from hpcdl.nn.kernels.cupy.sums import channel_sum
from hpcdl.nn.precision import storage_dtype

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
        self._weight_copy = ParameterCopy(device, g.dtype)
        self._saved: tuple[Array, ...] = ()

    def forward(self, x: Array, weight: Array, bias: Array | None) -> Array:
        """See :class:`hpcdl.nn.ops.Affine`."""
        g, device = self._geometry, self._device
        self._saved = ()
        y = device.empty((len(x), *g.output), storage_dtype(g.dtype))
        filters = self._weight_copy.current(weight).reshape(g.output[2], self._span)
        outputs = y.reshape(-1, g.output[2])
        for group, rows in self._groups():
            device.multiply(
                self._columns(x, group),
                filters[rows],
                outputs[:, rows],
                g.dtype,
                transpose_a=False,
                transpose_b=True,
            )
        if bias is not None or g.relu:
            grid = grid_over_rows(len(outputs), g.output[2], g.dtype)
            device.launch(
                *("elementwise", "bias_relu", g.dtype, grid, y, bias, len(outputs), g.output[2], int(g.relu))
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
            channel_sum(device, dz, g.dtype, dbias)
        dx = device.empty(x.shape, storage_dtype(g.dtype)) if needs_dx else None
        gradient = dz.reshape(-1, g.output[2])
        filters = self._weight_copy.current(weight).reshape(g.output[2], self._span)
        for group, rows in self._groups():
            columns = self._columns(x, group)
            target = dweight.reshape(g.output[2], self._span)[rows]
            device.multiply(gradient[:, rows], columns, target, g.dtype, transpose_a=True, transpose_b=False)
            if dx is not None:
                device.multiply(
                    gradient[:, rows], filters[rows], columns, g.dtype, transpose_a=False, transpose_b=False
                )
                device.launch(
                    *(
                        "windows",
                        "scatter_windows",
                        g.dtype,
                        grid_over(dx.size),
                        columns,
                        dx,
                        len(x),
                        *self._sizes,
                    ),
                    *(group * self._share, self._share),
                )
        return dx

    def _columns(self, x: Array, group: int) -> Array:
        g = self._geometry
        columns = self._device.empty((len(x) * math.prod(g.output[:2]), self._span), storage_dtype(g.dtype))
        self._device.launch(
            *("windows", "gather_windows", g.dtype, grid_over(columns.size), x, columns, len(x), *self._sizes),
            *(group * self._share, self._share),
        )
        return columns

    def _groups(self) -> Iterator[tuple[int, slice]]:
        for group in range(self._geometry.groups):
            yield group, slice(group * self._filters, (group + 1) * self._filters)
