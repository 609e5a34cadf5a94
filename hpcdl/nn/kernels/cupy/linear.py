"""Matrix product."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdl.nn.kernels.cupy.device import grid_over_rows
from hpcdl.nn.kernels.cupy.elementwise import rectified_gradient
from hpcdl.nn.kernels.cupy.parameters import ParameterCopy
from hpcdl.nn.kernels.cupy.sums import channel_sum
from hpcdl.nn.precision import storage_dtype

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array
    from hpcdl.nn.geometry import LinearGeometry
    from hpcdl.nn.kernels.cupy.device import Device


class Linear:
    """y = x weight^T + bias, with a ReLU if the geometry has one; dweight = dy^T x; dx = dy weight."""

    def __init__(self, device: Device, geometry: LinearGeometry) -> None:
        self._device = device
        self._geometry = geometry
        self._weight_copy = ParameterCopy(device, geometry.dtype)
        self._saved: tuple[Array, ...] = ()

    def forward(self, x: Array, weight: Array, bias: Array | None) -> Array:
        """See :class:`hpcdl.nn.ops.Affine`."""
        g, device = self._geometry, self._device
        self._saved = ()
        y = device.empty((len(x), g.outputs), storage_dtype(g.dtype))
        device.multiply(x, self._weight_copy.current(weight), y, g.dtype, transpose_a=False, transpose_b=True)
        if bias is not None or g.relu:
            grid = grid_over_rows(len(x), g.outputs, g.dtype)
            device.launch(*("elementwise", "bias_relu", g.dtype, grid, y, bias, len(x), g.outputs, int(g.relu)))
        self._saved = (x, y)
        return y

    def backward(
        self, dy: Array, weight: Array, dweight: Array, dbias: Array | None, needs_dx: bool
    ) -> Array | None:
        """See :class:`hpcdl.nn.ops.Affine`."""
        (x, y), self._saved = self._saved, ()
        g, device = self._geometry, self._device
        dz = rectified_gradient(device, dy, y, g.dtype) if g.relu else dy
        # cuBLAS multiplies 16-bit factors to a 32-bit product, so the gradient needs no intermediate array
        device.multiply(dz, x, dweight, g.dtype, transpose_a=True, transpose_b=False)
        if dbias is not None:
            channel_sum(device, dz, g.dtype, dbias)
        if not needs_dx:
            return None
        dx = device.empty((len(dy), g.inputs), storage_dtype(g.dtype))
        device.multiply(dz, self._weight_copy.current(weight), dx, g.dtype, transpose_a=False, transpose_b=False)
        return dx
