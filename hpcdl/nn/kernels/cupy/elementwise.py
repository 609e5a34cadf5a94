"""Element-wise ops, sums per channel, and the loss."""

import math
from collections.abc import Sequence
from copy import copy
from itertools import accumulate
from typing import ClassVar, Final, Self

import numpy as np

from hpcdl.fabric.comm import Array
from hpcdl.nn.geometry import ConcatenationGeometry, DropoutGeometry, master, storage_dtype
from hpcdl.nn.kernels.cupy.device import Device, Op, grid_over_rows


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
