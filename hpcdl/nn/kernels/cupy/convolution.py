"""Convolution by cuDNN."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdl.nn.kernels.cupy.device import over_rows
from hpcdl.nn.kernels.cupy.elementwise import rectified_gradient
from hpcdl.nn.kernels.cupy.parameters import Shadow
from hpcdl.nn.kernels.cupy.sums import channel_sum
from hpcdl.nn.kernels.cupy.tensor_numbers import BIAS, WEIGHT, X, Y
from hpcdl.nn.precision import carrier

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array
    from hpcdl.nn.geometry import ConvolutionGeometry
    from hpcdl.nn.kernels.cupy.device import Device


class Convolution:
    """Forward with bias and ReLU in one, data gradient and weight gradient, each a plan for the batch's size."""

    def __init__(self, device: Device, geometry: ConvolutionGeometry) -> None:
        self._device = device
        self._geometry = geometry
        self._weight, self._bias = Shadow(device, geometry.dtype), Shadow(device, geometry.dtype)
        self._kept: tuple[Array, ...] = ()

    def forward(self, x: Array, weight: Array, bias: Array | None) -> Array:
        """See :class:`hpcdl.nn.ops.Affine`."""
        g, device, batch = self._geometry, self._device, len(x)
        self._kept = ()
        y = device.empty((batch, *g.output), carrier(g.dtype))
        self._kept = (x, y)
        if not batch:
            return y
        arrays = {X: x, WEIGHT: self._weight.of(weight), Y: y}
        has_more = bias is not None or g.relu
        fused = device.convolution_plan("fused", g, batch, biased=bias is not None) if has_more else None
        if fused is not None:
            device.execute(fused, arrays if bias is None else {**arrays, BIAS: self._bias.of(bias)})
            return y
        plain = device.convolution_plan("forward", g, batch, biased=False)
        assert plain is not None, "cuDNN has an engine for every plain convolution"
        device.execute(plain, arrays)
        if has_more:
            rows, filters = y.size // g.output[2], g.output[2]
            spread = over_rows(rows, filters, g.dtype)
            device.launch("elementwise", "bias_relu", g.dtype, spread, y, bias, rows, filters, int(g.relu))
        return y

    def backward(
        self, dy: Array, weight: Array, dweight: Array, dbias: Array | None, wanted: bool
    ) -> Array | None:
        """See :class:`hpcdl.nn.ops.Affine`."""
        (x, y), self._kept = self._kept, ()
        g, device, batch = self._geometry, self._device, len(dy)
        if not batch:
            dweight[...] = 0
            if dbias is not None:
                dbias[...] = 0
            return device.empty(x.shape, carrier(g.dtype)) if wanted else None
        dz = rectified_gradient(device, dy, y, g.dtype) if g.relu else dy
        del y
        if dbias is not None:
            channel_sum(device, dz, g.dtype, dbias)
        landed = self._weight.landing(dweight)
        plan = device.convolution_plan("weight", g, batch, biased=False)
        assert plan is not None, "cuDNN has an engine for every weight gradient"
        device.execute(plan, {X: x, Y: dz, WEIGHT: landed})
        self._weight.land(landed, dweight)
        if not wanted:
            return None
        dx = device.empty(x.shape, carrier(g.dtype))
        plan = device.convolution_plan("data", g, batch, biased=False)
        assert plan is not None, "cuDNN has an engine for every data gradient"
        device.execute(plan, {Y: dz, WEIGHT: self._weight.of(weight), X: dx})
        return dx
