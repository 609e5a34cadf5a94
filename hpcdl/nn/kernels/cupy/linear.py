"""Matrix product."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdl.nn.kernels.cupy.device import over_rows
from hpcdl.nn.kernels.cupy.elementwise import rectified_gradient
from hpcdl.nn.kernels.cupy.parameters import Shadow
from hpcdl.nn.kernels.cupy.sums import channel_sum
from hpcdl.nn.precision import carrier

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array
    from hpcdl.nn.geometry import LinearGeometry
    from hpcdl.nn.kernels.cupy.device import Device


class Linear:
    """y = x weight^T + bias, rectified if the geometry says so; dweight = dy^T x; dx = dy weight."""

    def __init__(self, device: Device, geometry: LinearGeometry) -> None:
        self._device = device
        self._geometry = geometry
        self._shadow = Shadow(device, geometry.dtype)
        self._kept: tuple[Array, ...] = ()

    def forward(self, x: Array, weight: Array, bias: Array | None) -> Array:
        """See :class:`hpcdl.nn.ops.Affine`."""
        g, device = self._geometry, self._device
        self._kept = ()
        y = device.empty((len(x), g.outputs), carrier(g.dtype))
        device.multiply(x, self._shadow.of(weight), y, g.dtype, turn_a=False, turn_b=True)
        if bias is not None or g.relu:
            spread = over_rows(len(x), g.outputs, g.dtype)
            device.launch(*("elementwise", "bias_relu", g.dtype, spread, y, bias, len(x), g.outputs, int(g.relu)))
        self._kept = (x, y)
        return y

    def backward(
        self, dy: Array, weight: Array, dweight: Array, dbias: Array | None, wanted: bool
    ) -> Array | None:
        """See :class:`hpcdl.nn.ops.Affine`."""
        (x, y), self._kept = self._kept, ()
        g, device = self._geometry, self._device
        dz = rectified_gradient(device, dy, y, g.dtype) if g.relu else dy
        # 16-bit factors and a 32-bit product are one of cuBLAS's combinations: the gradient needs no landing
        device.multiply(dz, x, dweight, g.dtype, turn_a=True, turn_b=False)
        if dbias is not None:
            channel_sum(device, dz, g.dtype, dbias)
        if not wanted:
            return None
        dx = device.empty((len(dy), g.inputs), carrier(g.dtype))
        device.multiply(dz, self._shadow.of(weight), dx, g.dtype, turn_a=False, turn_b=False)
        return dx
