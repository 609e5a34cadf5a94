"""Element-wise ops, sums per channel, normalisation, and the loss."""

import math
from collections.abc import Sequence
from copy import copy
from itertools import accumulate
from typing import ClassVar, Final, Self

import numpy as np

from hpcdl.fabric.comm import Array
from hpcdl.nn.backend import NormVectors
from hpcdl.nn.geometry import (
    BatchNormGeometry,
    ConcatenationGeometry,
    DropoutGeometry,
    ResponseGeometry,
    master,
    storage_dtype,
)
from hpcdl.nn.kernels.cupy.device import Device, EnginePlan, Op, Uid, grid_over_rows, is_aligned


class _Activation(Op):
    kernels: ClassVar[tuple[str, str]]
    """Of forward and backward."""

    def forward(self, x: Array) -> Array:
        self._saved = ()
        y = self._empty(x.shape)
        self._launch(self.kernels[0], x.size, x, y, x.size)
        self._saved = (y,)
        return y

    def backward(self, dy: Array) -> Array:
        (y,), self._saved = self._saved, ()
        dx = self._empty(dy.shape)
        self._launch(self.kernels[1], dy.size, dy, y, dx, dy.size)
        return dx


class ReLU(_Activation):
    """y = max(x, 0); dx = dy where y > 0."""

    kernels = ("relu_forward", "rectify")


class Sigmoid(_Activation):
    """y = 1 / (1 + exp(-x)); dx = dy y (1 - y)."""

    kernels = ("sigmoid_forward", "sigmoid_backward")


def rectified_gradient(device: Device, dy: Array, y: Array, dtype: str) -> Array:
    """Return dy where y > 0, otherwise 0."""
    dx = device.empty(dy.shape, storage_dtype(dtype))
    device.launch("elementwise", "rectify", dtype, dy.size, dy, y, dx, dy.size)
    return dx


class Addition(Op):
    """Add blobs of one shape, two at a time."""

    def forward(self, terms: Sequence[Array]) -> Array:
        total = terms[0]
        y = self._empty(total.shape)
        for term in terms[1:]:
            self._launch("add", y.size, total, term, y, y.size)
            total = y
        return y


class Concatenation(Op):
    """Concatenate blobs along the last axis; split their gradients."""

    def __init__(self, device: Device, geometry: ConcatenationGeometry) -> None:
        super().__init__(device, geometry)
        self._shapes = geometry.shapes
        self._offsets = list(accumulate((shape[-1] for shape in geometry.shapes), initial=0))
        self._rows = math.prod(geometry.shapes[0][:-1])

    def forward(self, pieces: Sequence[Array]) -> Array:
        batch, pitch = len(pieces[0]), self._offsets[-1]
        y = self._empty((batch, *self._shapes[0][:-1], pitch))
        for piece, offset in zip(pieces, self._offsets, strict=False):
            width = piece.shape[-1]
            self._copy(piece, y, batch, width, width, 0, pitch, offset)
        return y

    def backward(self, dy: Array) -> list[Array]:
        batch, pitch = len(dy), self._offsets[-1]
        pieces = [self._empty((batch, *shape)) for shape in self._shapes]
        for piece, offset in zip(pieces, self._offsets, strict=False):
            width = piece.shape[-1]
            self._copy(dy, piece, batch, width, pitch, offset, width, 0)
        return pieces

    def _copy(self, source: Array, target: Array, batch: int, width: int, *places: int) -> None:
        """Copy rows of ``width``; ``places``: pitch and offset in the source, and in the target."""
        rows = batch * self._rows
        self._launch("copy_columns", self._over_rows(rows, width), source, target, rows, width, *places)


MAX_THREADS: Final = 1 << 18
"""Threads that saturate the memory of a large GPU: 132 multiprocessors of 2048."""
GROUP: Final = 32
"""Smallest number of rows per thread."""


def groups_of(rows: int, channels: int) -> int:
    """Return the number of groups that rows are divided into, one thread per group and channel."""
    return max(1, min(-(-rows // GROUP), MAX_THREADS // channels))


def channel_sum(device: Device, x: Array, dtype: str, out: Array) -> None:
    """Set ``out`` (C,), in master precision, to the sum of ``x`` (..., C) over all axes except channels."""
    channels = x.shape[-1]
    rows = x.size // channels
    groups = groups_of(rows, channels)
    sums = out if groups == 1 else device.empty((groups, channels), master(dtype))
    grid = grid_over_rows(groups, channels, dtype)
    device.launch("sums", "sum_activations", dtype, grid, x, sums, rows, channels, groups)
    if groups > 1:
        fold(device, sums, groups, channels, dtype, out)


def fold(device: Device, sums: Array, rows: int, channels: int, dtype: str, out: Array) -> None:
    """Set ``out`` (C,) to the sum of partial sums (rows, C), of which each launch leaves fewer."""
    groups = rows
    while groups > 1 or sums is not out:
        groups = -(-rows // GROUP)
        folded = out if groups == 1 else device.empty((groups, channels), master(dtype))
        grid = grid_over_rows(groups, channels, dtype)
        device.launch("sums", "sum_partial", dtype, grid, sums, folded, rows, channels, groups)
        sums, rows = folded, groups


class Dropout(Op):
    """y = x * mask with mask 0 or 1 / (1 - ratio), from a counter-based generator whose key is on the device.

    Each forward increments the counter on the device, so that recorded graphs draw new masks too.
    """

    source = "dropout"

    def __init__(self, device: Device, geometry: DropoutGeometry) -> None:
        super().__init__(device, geometry)
        self._ratio = float(geometry.ratio)
        self._state = device.zeros((3,), "uint32")

    def reseed(self, key: Sequence[int]) -> None:
        low, high = np.random.SeedSequence(list(key)).generate_state(2)
        self._launch("seed", 1, self._state, int(low), int(high))

    def continued(self) -> Self:
        """See :class:`hpcdl.nn.backend.Noise`; both increment one counter."""
        other = copy(self)
        other._saved = ()  # noqa: SLF001 - of the same class
        return other

    def forward(self, x: Array) -> Array:
        self._saved = ()
        y, mask = self._empty(x.shape), self._device.empty(x.shape, "uint8")
        self._launch("dropout_forward", -(-x.size // 4), x, y, mask, self._state, x.size, self._ratio)
        self._launch("advance", 1, self._state)
        self._saved = (mask,)
        return y

    def backward(self, dy: Array) -> Array:
        (mask,), self._saved = self._saved, ()
        dx = self._empty(dy.shape)
        self._launch("dropout_backward", dy.size, dy, mask, dx, dy.size, self._ratio)
        return dx


LANES: Final = 32
"""Threads per image, as in ``cross_entropy.cu``."""


class CrossEntropy(Op):
    """loss = log(sum of exp(logits)) - logits[label]; the largest logit is subtracted first."""

    def __call__(self, logits: Array, labels: Array, scale: float) -> tuple[float, int, Array]:
        """See :class:`hpcdl.nn.backend.CrossEntropy`; ValueError where a label is out of range.

        The gradient has the precision of ``logits``, which is the parameters' for the output of ``predict``.
        """
        dtype = master(self._dtype) if logits.dtype != storage_dtype(self._dtype) else self._dtype
        images, classes, device, exact = len(logits), self._geometry.shape[0], self._device, master(dtype)
        labels = labels.astype("int64", copy=False)
        gradient = device.empty(logits.shape, storage_dtype(dtype))
        if not images:
            return 0.0, 0, gradient
        largest, total = (device.empty((images, LANES), exact) for _ in range(2))
        index, right = device.empty((images, LANES), "int32"), device.empty((images,), "int32")
        tops, sums = (device.empty((images,), exact) for _ in range(2))
        losses, result = device.empty((images,), "float64"), device.empty((3,), "float64")

        def launch(kernel: str, elements: int, *arguments: Array | float) -> None:
            device.launch("cross_entropy", kernel, dtype, elements, *arguments)

        launch("scan_logits", images * LANES, logits, largest, total, index, images, classes)
        launch(
            *("join_lanes", images, logits, labels, largest, total, index),
            *(tops, sums, losses, right, images, classes),
        )
        launch("add_losses", 1, losses, right, result, images)
        launch(
            *("softmax_gradient", logits.size, logits, labels, tops, sums),
            *(gradient, images, classes, float(scale)),
        )
        loss, correct, unknown = device.to_host(result)
        if unknown:
            host = device.to_host(labels)
            raise ValueError(f"labels from {host.min()} to {host.max()}, but classes are 0 to {classes - 1}")
        return float(loss), int(correct), gradient


MAX_GROUPS = 256
"""Most groups of rows; one thread per channel combines their moments."""


class BatchNorm(Op):
    """Normalise by the batch or by the running statistics; shortcut and ReLU in the same pass.

    The backward of the ReLU uses the sign of y, which the next layer keeps anyway as its input.
    """

    source = "batch_norm"

    def __init__(self, device: Device, geometry: BatchNormGeometry) -> None:
        super().__init__(device, geometry)
        self._channels = geometry.shape[-1]

    def forward(self, x: Array, shortcut: Array | None, vectors: NormVectors, train: bool) -> Array:
        self._saved = ()
        rows, channels = x.size // self._channels, self._channels
        y, batch_mean, inverse = self._empty(x.shape), self._exact(channels), self._exact(channels)
        if train:
            self._saved = (x, y, batch_mean, inverse)
        if not rows:
            return y
        if train:
            gamma, beta, mean, variance, *_ = vectors
            plan = self._plan("forward", len(x), rows, gamma, beta, mean, variance)
            if plan is not None:
                self._by_cudnn(plan, shortcut, vectors)
                return y
            self._moments(x, rows, batch_mean, inverse, mean, variance)
        else:
            self._launch(
                "inverse_deviation", channels, vectors.variance, inverse, channels, float(self._geometry.eps)
            )
        used = batch_mean if train else vectors.mean
        arrays = (x, shortcut, used, inverse, vectors.gamma, vectors.beta, y)
        self._launch(
            "normalise", self._over_rows(rows, channels), *arrays, rows, channels, int(self._geometry.relu)
        )
        return y

    def backward(self, dy: Array, vectors: NormVectors) -> tuple[Array, Array | None]:
        (x, y, mean, inverse), self._saved = self._saved, ()
        rows, channels = dy.size // self._channels, self._channels
        gamma, *_, dgamma, dbeta = vectors
        if not rows:
            dgamma[...] = 0
            dbeta[...] = 0
            return dy, dy if self._geometry.joined else None
        dz = rectified_gradient(self._device, dy, y, self._dtype) if self._geometry.relu else dy
        del y
        dx = self._empty(dy.shape)
        plan = self._plan("backward", len(dy), rows, gamma, dgamma, dbeta)
        if plan is not None:
            arrays = {Uid.Y: dz, Uid.X: x, Uid.GAMMA: gamma, Uid.MEAN: mean, Uid.INVERSE: inverse}
            arrays |= {Uid.SHORTCUT: dx, Uid.DGAMMA: dgamma, Uid.DBETA: dbeta}
            self._device.execute(plan, arrays)
        else:
            self._sums((dz, x, mean, inverse), dgamma, dbeta, rows)
            gradients = (dz, x, mean, inverse, gamma, dgamma, dbeta, dx)
            self._launch("input_gradient", self._over_rows(rows, channels), *gradients, rows, channels)
        return dx, dz if self._geometry.joined else None

    def _plan(self, operation: str, batch: int, rows: int, *vectors: Array) -> EnginePlan | None:
        """Return cuDNN's plan; None for unaligned vectors and for one pixel (unbiased variance 0 / 0)."""
        if rows < 2 or not all(is_aligned(self._device.address(vector)) for vector in vectors):
            return None
        return self._device.batch_norm_plan(operation, self._geometry, batch)

    def _by_cudnn(self, plan: EnginePlan, shortcut: Array | None, vectors: NormVectors) -> None:
        x, y, batch_mean, inverse = self._saved
        next_mean, next_variance = (self._exact(self._channels) for _ in range(2))
        arrays = {Uid.X: x, Uid.Y: y, Uid.GAMMA: vectors.gamma, Uid.BETA: vectors.beta}
        arrays |= {Uid.MEAN: batch_mean, Uid.INVERSE: inverse}
        arrays |= {Uid.RUNNING_MEAN: vectors.mean, Uid.RUNNING_VARIANCE: vectors.variance}
        arrays |= {Uid.NEXT_MEAN: next_mean, Uid.NEXT_VARIANCE: next_variance}
        if shortcut is not None:
            arrays[Uid.SHORTCUT] = shortcut
        self._device.execute(plan, arrays)
        vectors.mean[...] = next_mean
        vectors.variance[...] = next_variance

    def _moments(
        self, x: Array, rows: int, mean: Array, inverse: Array, running_mean: Array, running_variance: Array
    ) -> None:
        g, channels = self._geometry, self._channels
        groups = min(groups_of(rows, channels), MAX_GROUPS)
        means, squares = (self._exact(groups, channels) for _ in range(2))
        grid = self._over_rows(groups, channels)
        self._launch("moments_of_groups", grid, x, means, squares, rows, channels, groups)
        arrays = (means, squares, mean, inverse, running_mean, running_variance)
        self._launch("moments", channels, *arrays, rows, channels, groups, float(g.eps), float(g.momentum))

    def _sums(self, arrays: tuple[Array, ...], dgamma: Array, dbeta: Array, rows: int) -> None:
        """Set the gradients of gamma and beta; ``arrays``: dz, x, mean, inverse."""
        channels, groups = self._channels, groups_of(rows, self._channels)
        sums, products = (self._exact(groups, channels) for _ in range(2))
        grid = self._over_rows(groups, channels)
        self._launch("gradients_of_groups", grid, *arrays, sums, products, rows, channels, groups)
        for partial, out in ((sums, dbeta), (products, dgamma)):
            fold(self._device, partial, groups, channels, self._dtype, out)


class ResponseNormalization(Op):
    """y = x scale^-beta with scale = k + alpha / size * (x^2 summed over neighbouring channels)."""

    source = "response"

    def __init__(self, device: Device, geometry: ResponseGeometry) -> None:
        super().__init__(device, geometry)
        self._channels = geometry.shape[-1]

    def forward(self, x: Array) -> Array:
        self._saved = ()
        g, rows, channels = self._geometry, x.size // self._channels, self._channels
        y, scale = self._empty(x.shape), self._exact(*x.shape)
        sizes = (rows, channels, g.size, float(g.alpha), float(g.beta), float(g.k))
        self._launch("response_forward", self._over_rows(rows, channels), x, y, scale, *sizes)
        self._saved = (x, y, scale)
        return y

    def backward(self, dy: Array) -> Array:
        (x, y, scale), self._saved = self._saved, ()
        g, rows, channels = self._geometry, dy.size // self._channels, self._channels
        dx = self._empty(dy.shape)
        sizes = (rows, channels, g.size, float(g.alpha), float(g.beta))
        self._launch("response_backward", self._over_rows(rows, channels), dy, x, y, scale, dx, *sizes)
        return dx
