"""Ops on windows of images, pooling, convolution and locally connected layers; matrix products.

Backward of pooling gathers gradients, so that each sum has a fixed order.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from hpcdl.fabric.comm import Array
from hpcdl.nn.backend import Weights
from hpcdl.nn.geometry import Blob, Image, LinearGeometry, Shape, WindowGeometry, master, storage_dtype
from hpcdl.nn.kernels.cupy.device import Device, Grid, Op, Uid, is_aligned
from hpcdl.nn.kernels.cupy.elementwise import channel_sum, rectified_gradient


class _Pooling(Op):
    """Sizes of a pooling in the order of the kernels' arguments; allocation of its arrays."""

    source = "pooling"

    def __init__(self, device: Device, geometry: WindowGeometry) -> None:
        super().__init__(device, geometry)
        g = geometry
        self._sizes = (*g.image, *g.output[:2], *g.kernel, *g.stride, *g.padding)

    def _images(self, batch: int, image: Image) -> tuple[Array, Grid]:
        grid = self._over_rows(batch * image[0] * image[1], image[2])
        return self._empty((batch, *image)), grid


class MaxPooling(_Pooling):
    """Maximum of each window; stores the index of the first maximum. A window with NaN gives NaN."""

    def __init__(self, device: Device, geometry: WindowGeometry) -> None:
        super().__init__(device, geometry)
        self._wide = math.prod(geometry.kernel) > 256

    def forward(self, x: Array) -> Array:
        self._saved = ()
        y, grid = self._images(len(x), self._geometry.output)
        where = self._device.empty(y.shape, "uint16" if self._wide else "uint8")
        self._launch("max_forward", grid, x, y, where, len(x), *self._sizes, int(self._wide))
        self._saved = (where,)
        return y

    def backward(self, dy: Array) -> Array:
        (where,), self._saved = self._saved, ()
        dx, grid = self._images(len(dy), self._geometry.image)
        self._launch("max_backward", grid, dy, where, dx, len(dy), *self._sizes, int(self._wide))
        return dx


class AveragePooling(_Pooling):
    """Mean of each window; the divisor is its size clipped to the padded image, as in Caffe."""

    def forward(self, x: Array) -> Array:
        y, grid = self._images(len(x), self._geometry.output)
        self._launch("average_forward", grid, x, y, len(x), *self._sizes)
        return y

    def backward(self, dy: Array) -> Array:
        dx, grid = self._images(len(dy), self._geometry.image)
        self._launch("average_backward", grid, dy, dx, len(dy), *self._sizes)
        return dx


class GlobalAverage(Op):
    """Mean of each channel over the image."""

    source = "pooling"

    def __init__(self, device: Device, geometry: Blob) -> None:
        super().__init__(device, geometry)
        self._shape = geometry.shape
        self._pixels, self._channels = math.prod(geometry.shape[:-1]), geometry.shape[-1]

    def forward(self, x: Array) -> Array:
        y, grid = self._empty((len(x), self._channels)), self._over_rows(len(x), self._channels)
        self._launch("global_forward", grid, x, y, len(x), self._pixels, self._channels)
        return y

    def backward(self, dy: Array) -> Array:
        dx = self._empty((len(dy), *self._shape))
        grid = self._over_rows(len(dy) * self._pixels, self._channels)
        self._launch("global_backward", grid, dy, dx, len(dy), self._pixels, self._channels)
        return dx


@dataclass(eq=False)
class ParameterCopy:
    """Copy of a parameter, used where the view of the flat vector is unaligned or has another precision.

    Flat vectors have no padding between tensors, so a view may begin at any multiple of its element size.
    """

    device: Device
    dtype: str
    _copy: Array | None = None

    def current(self, parameter: Array) -> Array:
        """Return the parameter if a library can use it, otherwise a fresh copy, valid until the next call."""
        if self._fits(parameter):
            return parameter
        if self._copy is None or self._copy.shape != parameter.shape:
            self._copy = self.device.empty(parameter.shape, storage_dtype(self.dtype))
        size = parameter.size
        self.device.launch("cast", "narrow", self.dtype, size, parameter, self._copy, size)
        return self._copy

    def gradient_target(self, gradient: Array) -> Array:
        """Return the gradient if a library can write it, otherwise a new array for :meth:`store_gradient`."""
        return gradient if self._fits(gradient) else self.device.empty(gradient.shape, storage_dtype(self.dtype))

    def store_gradient(self, written: Array, gradient: Array) -> None:
        """Copy the array from :meth:`gradient_target` to ``gradient``, if they differ."""
        if written is not gradient:
            self.device.launch("cast", "widen", self.dtype, gradient.size, written, gradient, gradient.size)

    def _fits(self, array: Array) -> bool:
        return self.dtype == master(self.dtype) and is_aligned(self.device.address(array))


class _Affine(Op):
    """y = x weight^T + bias, with a ReLU if the geometry has one; subclasses multiply."""

    def __init__(self, device: Device, geometry: LinearGeometry | WindowGeometry, output: Shape) -> None:
        super().__init__(device, geometry)
        self._relu = geometry.relu
        self._output = output
        self._biases = output[-1]
        self._weight = ParameterCopy(device, geometry.dtype)

    def forward(self, x: Array, weights: Weights) -> Array:
        self._saved = ()
        y = self._empty((len(x), *self._output))
        self._multiply(x, self._weight.current(weights.weight), y)
        self._add_bias(y, weights.bias)
        self._saved = (x, y)
        return y

    def backward(self, dy: Array, weights: Weights, needs_dx: bool) -> Array | None:
        (x, y), self._saved = self._saved, ()
        dz = rectified_gradient(self._device, dy, y, self._dtype) if self._relu else dy
        del y  # its memory may be needed for dx
        if weights.dbias is not None:
            channel_sum(self._device, dz.reshape(-1, self._biases), self._dtype, weights.dbias)
        dx = self._empty(x.shape) if needs_dx else None
        self._differentiate(dz, x, weights, dx)
        return dx

    def _add_bias(self, y: Array, bias: Array | None) -> None:
        """Add ``bias`` to ``y``, unless it is None, and apply a ReLU if the geometry has one, in place."""
        if bias is not None or self._relu:
            rows = y.size // self._biases
            grid = self._over_rows(rows, self._biases)
            self._launch("bias_relu", grid, y, bias, rows, self._biases, int(self._relu))

    def _multiply(self, x: Array, weight: Array, y: Array) -> None:
        raise NotImplementedError

    def _differentiate(self, dz: Array, x: Array, weights: Weights, dx: Array | None) -> None:
        """Fill ``dweight``, and ``dx`` unless it is None."""
        raise NotImplementedError


class Linear(_Affine):
    """dweight = dy^T x; dx = dy weight."""

    def __init__(self, device: Device, geometry: LinearGeometry) -> None:
        super().__init__(device, geometry, (geometry.outputs,))

    def _multiply(self, x: Array, weight: Array, y: Array) -> None:
        self._device.multiply(x, weight, y, self._dtype, transpose_b=True)

    def _differentiate(self, dz: Array, x: Array, weights: Weights, dx: Array | None) -> None:
        # cuBLAS multiplies 16-bit factors to a 32-bit product, so the gradient needs no intermediate array
        self._device.multiply(dz, x, weights.dweight, self._dtype, transpose_a=True)
        if dx is not None:
            self._device.multiply(dz, self._weight.current(weights.weight), dx, self._dtype)


class Convolution(_Affine):
    """Forward fused with bias and ReLU, data gradient and weight gradient; one plan per batch size."""

    def __init__(self, device: Device, geometry: WindowGeometry) -> None:
        super().__init__(device, geometry, geometry.output)
        self._bias = ParameterCopy(device, geometry.dtype)

    def forward(self, x: Array, weights: Weights) -> Array:
        g, device, batch, bias = self._geometry, self._device, len(x), weights.bias
        self._saved = ()
        y = self._empty((batch, *g.output))
        self._saved = (x, y)
        if not batch:
            return y
        # Not every geometry has an engine that adds the bias and applies the ReLU: then kernels of ours follow.
        arrays = {Uid.X: x, Uid.WEIGHT: self._weight.current(weights.weight), Uid.Y: y}
        has_more = bias is not None or g.relu
        fused = device.convolution_plan("fused", g, batch, biased=bias is not None) if has_more else None
        if fused is not None:
            device.execute(fused, arrays if bias is None else {**arrays, Uid.BIAS: self._bias.current(bias)})
            return y
        self._execute("forward", batch, arrays)
        self._add_bias(y, bias)
        return y

    def _differentiate(self, dz: Array, x: Array, weights: Weights, dx: Array | None) -> None:
        if not len(dz):
            weights.dweight[...] = 0
            return
        target = self._weight.gradient_target(weights.dweight)
        self._execute("weight", len(dz), {Uid.X: x, Uid.Y: dz, Uid.WEIGHT: target})
        self._weight.store_gradient(target, weights.dweight)
        if dx is not None:
            arrays = {Uid.Y: dz, Uid.WEIGHT: self._weight.current(weights.weight), Uid.X: dx}
            self._execute("data", len(dz), arrays)

    def _execute(self, operation: str, batch: int, arrays: dict[Uid, Array]) -> None:
        plan = self._device.convolution_plan(operation, self._geometry, batch, biased=False)
        assert plan is not None, "cuDNN has an engine for each of the other operations"
        self._device.execute(plan, arrays)


class _Windows(_Affine):
    """An op that copies the windows of images to rows of a matrix (Chellapilla et al. 2006)."""

    def __init__(self, device: Device, geometry: WindowGeometry) -> None:
        super().__init__(device, geometry, geometry.output)
        g = geometry
        self._groups = g.groups
        self._positions = math.prod(g.output[:2])
        self._share = g.image[2] // g.groups
        self._span = math.prod(g.kernel) * self._share
        self._sizes = (*g.image, *g.output[:2], *g.kernel, *g.stride, *g.padding)

    def _gather(self, x: Array, group: int = 0) -> Array:
        columns = self._empty((len(x), self._positions, self._span))
        self._copy("gather_windows", columns.size, x, columns, len(x), group)
        return columns

    def _scatter(self, columns: Array, dx: Array, group: int = 0) -> None:
        self._copy("scatter_windows", dx.size, columns, dx, len(dx), group)

    def _copy(self, kernel: str, size: int, source: Array, to: Array, batch: int, group: int) -> None:
        sizes = (batch, *self._sizes, group * self._share, self._share)
        self._device.launch("windows", kernel, self._dtype, size, source, to, *sizes)


class Windows(_Windows):
    """Every convolution: y = windows @ weight^T, one product per group."""

    def _multiply(self, x: Array, weight: Array, y: Array) -> None:
        filters, outputs = weight.reshape(self._biases, self._span), y.reshape(-1, self._biases)
        for group, rows in self._of_groups():
            columns = self._gather(x, group).reshape(-1, self._span)
            self._device.multiply(columns, filters[rows], outputs[:, rows], self._dtype, transpose_b=True)

    def _differentiate(self, dz: Array, x: Array, weights: Weights, dx: Array | None) -> None:
        device, gradient = self._device, dz.reshape(-1, self._biases)
        filters = self._weight.current(weights.weight).reshape(self._biases, self._span)
        dfilters = weights.dweight.reshape(self._biases, self._span)
        for group, rows in self._of_groups():
            columns = self._gather(x, group).reshape(-1, self._span)
            device.multiply(gradient[:, rows], columns, dfilters[rows], self._dtype, transpose_a=True)
            if dx is not None:
                device.multiply(gradient[:, rows], filters[rows], columns, self._dtype)
                self._scatter(columns, dx, group)

    def _of_groups(self) -> Iterator[tuple[int, slice]]:
        size = self._biases // self._groups
        for group in range(self._groups):
            yield group, slice(group * size, (group + 1) * size)


class LocallyConnected(_Windows):
    """At each position, over the batch: y = windows @ weight^T; all positions in one batched product."""

    def __init__(self, device: Device, geometry: WindowGeometry) -> None:
        super().__init__(device, geometry)
        self._biases = math.prod(geometry.output)

    def _multiply(self, x: Array, weight: Array, y: Array) -> None:
        windows, filters = self._by_position(self._gather(x)), self._matrices(weight)
        self._device.multiply(windows, filters, self._by_position(y), self._dtype, transpose_b=True)

    def _differentiate(self, dz: Array, x: Array, weights: Weights, dx: Array | None) -> None:
        columns, gradient = self._gather(x), self._by_position(dz)
        windows, target = self._by_position(columns), self._matrices(weights.dweight)
        self._device.multiply(gradient, windows, target, self._dtype, transpose_a=True)
        if dx is not None:
            filters = self._matrices(self._weight.current(weights.weight))
            self._device.multiply(gradient, filters, windows, self._dtype)
            self._scatter(columns, dx)

    def _by_position(self, images: Array) -> Array:
        """Return a view of images or windows (N, P, Q, F) as (P Q, N, F)."""
        return images.reshape(len(images), self._positions, images.shape[-1]).swapaxes(0, 1)

    def _matrices(self, weight: Array) -> Array:
        """Return a view of the weights as (P Q, K, R S C)."""
        return weight.reshape(self._positions, self._output[2], self._span)
