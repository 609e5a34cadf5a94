"""Convolution by cuDNN."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdl.nn.kernels.cupy.device import grid_over_rows
from hpcdl.nn.kernels.cupy.elementwise import rectified_gradient
from hpcdl.nn.kernels.cupy.parameters import ParameterCopy
from hpcdl.nn.kernels.cupy.sums import channel_sum
from hpcdl.nn.kernels.cupy.tensor_numbers import BIAS, WEIGHT, X, Y
from hpcdl.nn.precision import storage_dtype

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array
    from hpcdl.nn.geometry import ConvolutionGeometry
    from hpcdl.nn.kernels.cupy.device import Device


class Convolution:
    """Forward fused with bias and ReLU, data gradient and weight gradient; one plan per batch size."""

    def __init__(self, device: Device, geometry: ConvolutionGeometry) -> None:
        self._device = device
        self._geometry = geometry
        self._weight, self._bias = ParameterCopy(device, geometry.dtype), ParameterCopy(device, geometry.dtype)
        self._saved: tuple[Array, ...] = ()

    def forward(self, x: Array, weight: Array, bias: Array | None) -> Array:
        """See :class:`hpcdl.nn.ops.Affine`."""
        g, device, batch = self._geometry, self._device, len(x)
        self._saved = ()
        y = device.empty((batch, *g.output), storage_dtype(g.dtype))
        self._saved = (x, y)
        if not batch:
            return y
        arrays = {X: x, WEIGHT: self._weight.current(weight), Y: y}
        has_more = bias is not None or g.relu
        fused = device.convolution_plan("fused", g, batch, biased=bias is not None) if has_more else None
        if fused is not None:
            device.execute(fused, arrays if bias is None else {**arrays, BIAS: self._bias.current(bias)})
            return y
        plain = device.convolution_plan("forward", g, batch, biased=False)
        assert plain is not None, "cuDNN has an engine for every plain convolution"
        device.execute(plain, arrays)
        if has_more:
            rows, filters = y.size // g.output[2], g.output[2]
            grid = grid_over_rows(rows, filters, g.dtype)
            device.launch("elementwise", "bias_relu", g.dtype, grid, y, bias, rows, filters, int(g.relu))
        return y

    def backward(
        self, dy: Array, weight: Array, dweight: Array, dbias: Array | None, needs_dx: bool
    ) -> Array | None:
        """See :class:`hpcdl.nn.ops.Affine`."""
        (x, y), self._saved = self._saved, ()
        g, device, batch = self._geometry, self._device, len(dy)
        if not batch:
            dweight[...] = 0
            if dbias is not None:
                dbias[...] = 0
            return device.empty(x.shape, storage_dtype(g.dtype)) if needs_dx else None
        dz = rectified_gradient(device, dy, y, g.dtype) if g.relu else dy
        del y
        if dbias is not None:
            channel_sum(device, dz, g.dtype, dbias)
        target = self._weight.gradient_target(dweight)
        plan = device.convolution_plan("weight", g, batch, biased=False)
        assert plan is not None, "cuDNN has an engine for every weight gradient"
        device.execute(plan, {X: x, Y: dz, WEIGHT: target})
        self._weight.store_gradient(target, dweight)
        if not needs_dx:
            return None
        dx = device.empty(x.shape, storage_dtype(g.dtype))
        plan = device.convolution_plan("data", g, batch, biased=False)
        assert plan is not None, "cuDNN has an engine for every data gradient"
        device.execute(plan, {Y: dz, WEIGHT: self._weight.current(weight), X: dx})
        return dx
