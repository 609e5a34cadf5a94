"""Layers that are matrix products: convolutions, fully connected and locally connected layers."""

from __future__ import annotations

import math
from collections.abc import Iterator

from hpcdl.fabric.comm import Array
from hpcdl.nn.geometry import ConvolutionGeometry, LinearGeometry, LocallyConnectedGeometry, master, storage_dtype
from hpcdl.nn.kernels.cupy.device import Device, Uid, grid_over_rows, is_aligned
from hpcdl.nn.kernels.cupy.elementwise import channel_sum, rectified_gradient


class ParameterCopy:
    """Copy of a parameter, used where the view of the flat vector is unaligned or has another precision.

    Flat vectors have no padding between tensors, so a view may begin at any multiple of its element size.
    """

    def __init__(self, device: Device, dtype: str) -> None:
        self._device = device
        self._dtype = dtype
        self._copy: Array | None = None

    def current(self, parameter: Array) -> Array:
        """Return the parameter if a library can use it, otherwise a fresh copy, valid until the next call."""
        if self._fits(parameter):
            return parameter
        self._copy = self._copy_for(parameter)
        size = parameter.size
        self._device.launch("cast", "narrow", self._dtype, size, parameter, self._copy, size)
        return self._copy

    def gradient_target(self, gradient: Array) -> Array:
        """Return the gradient if a library can write it, otherwise a new array for :meth:`store_gradient`."""
        return gradient if self._fits(gradient) else self._device.empty(gradient.shape, storage_dtype(self._dtype))

    def store_gradient(self, written: Array, gradient: Array) -> None:
        """Copy the array from :meth:`gradient_target` to ``gradient``, if they differ."""
        if written is not gradient:
            self._device.launch("cast", "widen", self._dtype, gradient.size, written, gradient, gradient.size)

    def _fits(self, array: Array) -> bool:
        return self._dtype == master(self._dtype) and is_aligned(self._device.address(array))

    def _copy_for(self, parameter: Array) -> Array:
        if self._copy is None or self._copy.shape != parameter.shape:
            return self._device.empty(parameter.shape, storage_dtype(self._dtype))
        return self._copy


def _add_bias(device: Device, y: Array, bias: Array | None, outputs: int, relu: bool, dtype: str) -> None:
    """Add ``bias`` (outputs,) to ``y``, unless it is None, and apply a ReLU if ``relu``, in place."""
    if bias is not None or relu:
        rows = y.size // outputs
        grid = grid_over_rows(rows, outputs, dtype)
        device.launch("elementwise", "bias_relu", dtype, grid, y, bias, rows, outputs, int(relu))


class Linear:
    """y = x weight^T + bias, with a ReLU if the geometry has one; dweight = dy^T x; dx = dy weight."""

    def __init__(self, device: Device, geometry: LinearGeometry) -> None:
        self._device = device
        self._geometry = geometry
        self._weight_copy = ParameterCopy(device, geometry.dtype)
        self._saved: tuple[Array, ...] = ()

    def forward(self, x: Array, weight: Array, bias: Array | None) -> Array:
        g, device = self._geometry, self._device
        self._saved = ()
        y = device.empty((len(x), g.outputs), storage_dtype(g.dtype))
        device.multiply(x, self._weight_copy.current(weight), y, g.dtype, transpose_a=False, transpose_b=True)
        _add_bias(device, y, bias, g.outputs, g.relu, g.dtype)
        self._saved = (x, y)
        return y

    def backward(
        self, dy: Array, weight: Array, dweight: Array, dbias: Array | None, needs_dx: bool
    ) -> Array | None:
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


class Convolution:
    """Forward fused with bias and ReLU, data gradient and weight gradient; one plan per batch size."""

    def __init__(self, device: Device, geometry: ConvolutionGeometry) -> None:
        self._device = device
        self._geometry = geometry
        self._weight, self._bias = ParameterCopy(device, geometry.dtype), ParameterCopy(device, geometry.dtype)
        self._saved: tuple[Array, ...] = ()

    def forward(self, x: Array, weight: Array, bias: Array | None) -> Array:
        g, device, batch = self._geometry, self._device, len(x)
        self._saved = ()
        y = device.empty((batch, *g.output), storage_dtype(g.dtype))
        self._saved = (x, y)
        if not batch:
            return y
        arrays = {Uid.X: x, Uid.WEIGHT: self._weight.current(weight), Uid.Y: y}
        has_more = bias is not None or g.relu
        fused = device.convolution_plan("fused", g, batch, biased=bias is not None) if has_more else None
        if fused is not None:
            device.execute(fused, arrays if bias is None else {**arrays, Uid.BIAS: self._bias.current(bias)})
            return y
        plain = device.convolution_plan("forward", g, batch, biased=False)
        assert plain is not None, "cuDNN has an engine for every plain convolution"
        device.execute(plain, arrays)
        _add_bias(device, y, bias, g.output[2], g.relu, g.dtype)
        return y

    def backward(
        self, dy: Array, weight: Array, dweight: Array, dbias: Array | None, needs_dx: bool
    ) -> Array | None:
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
        device.execute(plan, {Uid.X: x, Uid.Y: dz, Uid.WEIGHT: target})
        self._weight.store_gradient(target, dweight)
        if not needs_dx:
            return None
        dx = device.empty(x.shape, storage_dtype(g.dtype))
        plan = device.convolution_plan("data", g, batch, biased=False)
        assert plan is not None, "cuDNN has an engine for every data gradient"
        device.execute(plan, {Uid.Y: dz, Uid.WEIGHT: self._weight.current(weight), Uid.X: dx})
        return dx


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
        g, device = self._geometry, self._device
        self._saved = ()
        y = device.empty((len(x), *g.output), storage_dtype(g.dtype))
        filters = self._weight_copy.current(weight).reshape(g.output[2], self._span)
        outputs = y.reshape(-1, g.output[2])
        for group, rows in self._groups():
            columns, target = self._columns(x, group), outputs[:, rows]
            device.multiply(columns, filters[rows], target, g.dtype, transpose_a=False, transpose_b=True)
        _add_bias(device, y, bias, g.output[2], g.relu, g.dtype)
        self._saved = (x, y)
        return y

    def backward(
        self, dy: Array, weight: Array, dweight: Array, dbias: Array | None, needs_dx: bool
    ) -> Array | None:
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
                left, right = gradient[:, rows], filters[rows]
                device.multiply(left, right, columns, g.dtype, transpose_a=False, transpose_b=False)
                sizes = (len(x), *self._sizes, group * self._share, self._share)
                device.launch("windows", "scatter_windows", g.dtype, dx.size, columns, dx, *sizes)
        return dx

    def _columns(self, x: Array, group: int) -> Array:
        g = self._geometry
        columns = self._device.empty((len(x) * math.prod(g.output[:2]), self._span), storage_dtype(g.dtype))
        sizes = (len(x), *self._sizes, group * self._share, self._share)
        self._device.launch("windows", "gather_windows", g.dtype, columns.size, x, columns, *sizes)
        return columns

    def _groups(self) -> Iterator[tuple[int, slice]]:
        for group in range(self._geometry.groups):
            yield group, slice(group * self._filters, (group + 1) * self._filters)


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
        g, device = self._geometry, self._device
        self._saved = ()
        y = device.empty((len(x), *g.output), storage_dtype(g.dtype))
        windows, filters = self._by_position(self._columns(x)), self._matrices(self._weight_copy.current(weight))
        device.multiply(windows, filters, self._by_position(y), g.dtype, transpose_a=False, transpose_b=True)
        _add_bias(device, y, bias, math.prod(g.output), g.relu, g.dtype)
        self._saved = (x, y)
        return y

    def backward(
        self, dy: Array, weight: Array, dweight: Array, dbias: Array | None, needs_dx: bool
    ) -> Array | None:
        (x, y), self._saved = self._saved, ()
        g, device = self._geometry, self._device
        dz = rectified_gradient(device, dy, y, g.dtype) if g.relu else dy
        if dbias is not None:
            channel_sum(device, dz.reshape(len(dz), math.prod(g.output)), g.dtype, dbias)
        columns, gradient = self._columns(x), self._by_position(dz)
        windows, target = self._by_position(columns), self._matrices(dweight)
        device.multiply(gradient, windows, target, g.dtype, transpose_a=True, transpose_b=False)
        if not needs_dx:
            return None
        dx = device.empty(x.shape, storage_dtype(g.dtype))
        filters = self._matrices(self._weight_copy.current(weight))
        device.multiply(gradient, filters, windows, g.dtype, transpose_a=False, transpose_b=False)
        device.launch("windows", "scatter_windows", g.dtype, dx.size, columns, dx, len(x), *self._sizes)
        return dx

    def _columns(self, x: Array) -> Array:
        """Copy the windows of all positions to (N, P Q, R S C)."""
        dtype = self._geometry.dtype
        columns = self._device.empty((len(x), self._positions, self._span), storage_dtype(dtype))
        self._device.launch("windows", "gather_windows", dtype, columns.size, x, columns, len(x), *self._sizes)
        return columns

    def _by_position(self, images: Array) -> Array:
        """Return a view of images or windows (N, P, Q, F) as (P Q, N, F)."""
        return images.reshape(len(images), self._positions, images.shape[-1]).swapaxes(0, 1)

    def _matrices(self, weight: Array) -> Array:
        """Return a view of the weights as (P Q, K, R S C)."""
        return weight.reshape(self._positions, self._geometry.output[2], self._span)
