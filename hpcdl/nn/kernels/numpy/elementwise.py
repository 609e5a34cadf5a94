"""Element-wise ops, normalisation, concatenation and addition, and the loss."""

import math
from collections.abc import Sequence
from copy import copy
from itertools import accumulate
from typing import Self

import numpy as np

from hpcdl.fabric.comm import Array
from hpcdl.nn.backend import NormVectors
from hpcdl.nn.geometry import BatchNormGeometry, Blob, ConcatenationGeometry, DropoutGeometry, ResponseGeometry
from hpcdl.nn.kernels.numpy.activation_pool import Op, allocate


class ReLU(Op[Blob]):
    """y = max(x, 0); dx = dy where y > 0."""

    def forward(self, x: Array) -> Array:
        self._saved = ()
        y = allocate(x.shape, self._geometry.dtype)
        np.maximum(x, 0, out=y)
        self._saved = (y,)
        return y

    def backward(self, dy: Array) -> Array:
        (y,), self._saved = self._saved, ()
        return rectified_gradient(dy, y)


def rectified_gradient(dy: Array, y: Array) -> Array:
    """Return dy where y > 0, otherwise 0."""
    dx = allocate(dy.shape, dy.dtype)
    np.multiply(dy, np.greater(y, 0), out=dx)
    return dx


class Sigmoid(Op[Blob]):
    """y = 1 / (1 + exp(-x)) = (1 + tanh(x / 2)) / 2, which overflows nowhere; dx = dy y (1 - y)."""

    def forward(self, x: Array) -> Array:
        self._saved = ()
        y = allocate(x.shape, self._geometry.dtype)
        np.multiply(x, 0.5, out=y)
        np.tanh(y, out=y)
        y += 1
        y *= 0.5
        self._saved = (y,)
        return y

    def backward(self, dy: Array) -> Array:
        (y,), self._saved = self._saved, ()
        dx = allocate(dy.shape, dy.dtype)
        np.subtract(1, y, out=dx)
        dx *= y
        dx *= dy
        return dx


class Dropout(Op[DropoutGeometry]):
    """y = x * mask with mask 0 or 1 / (1 - ratio)."""

    def __init__(self, geometry: DropoutGeometry) -> None:
        super().__init__(geometry)
        self._generator = np.random.default_rng(0)

    def reseed(self, key: Sequence[int]) -> None:
        self._generator.bit_generator.state = np.random.default_rng(key).bit_generator.state

    def continued(self) -> Self:
        """See :class:`hpcdl.nn.backend.Noise`; forwards of n and m images draw what one of n + m images draws."""
        other = copy(self)
        other._saved = ()  # noqa: SLF001 - of the same class
        return other

    def forward(self, x: Array) -> Array:
        self._saved = ()
        # float32 for every dtype, so that all precisions draw the same masks
        uniform, mask, y = allocate(x.shape, "float32"), allocate(x.shape, x.dtype), allocate(x.shape, x.dtype)
        self._generator.random(dtype=np.float32, out=uniform)
        np.greater_equal(uniform, self._geometry.ratio, out=mask)
        mask *= 1 / (1 - self._geometry.ratio)
        np.multiply(x, mask, out=y)
        self._saved = (mask,)
        return y

    def backward(self, dy: Array) -> Array:
        (mask,), self._saved = self._saved, ()
        dx = allocate(dy.shape, dy.dtype)
        np.multiply(dy, mask, out=dx)
        return dx


class Concatenation:
    """Concatenate blobs along the last axis; split their gradients."""

    def __init__(self, geometry: ConcatenationGeometry) -> None:
        self._ends = list(accumulate(shape[-1] for shape in geometry.shapes))
        self._shape = (*geometry.shapes[0][:-1], self._ends[-1])
        self._shapes = geometry.shapes

    def forward(self, pieces: Sequence[Array]) -> Array:
        y = allocate((len(pieces[0]), *self._shape), pieces[0].dtype)
        np.concatenate(pieces, axis=-1, out=y)
        return y

    def backward(self, dy: Array) -> list[Array]:
        pieces = [allocate((len(dy), *shape), dy.dtype) for shape in self._shapes]
        for piece, part in zip(pieces, np.split(dy, self._ends[:-1], axis=-1), strict=True):
            piece[...] = part
        return pieces


class Addition(Op[Blob]):
    """Add blobs of one shape."""

    def forward(self, terms: Sequence[Array]) -> Array:
        y = allocate(terms[0].shape, self._geometry.dtype)
        np.add(terms[0], terms[1], out=y)
        for term in terms[2:]:
            y += term
        return y


class CrossEntropy:
    """loss = log(sum of exp(logits)) - logits[label].

    The largest logit is subtracted first, so that exp cannot overflow.
    """

    def __init__(self, geometry: Blob) -> None:
        self._classes = geometry.shape[0]

    def __call__(self, logits: Array, labels: Array, scale: float) -> tuple[float, int, Array]:
        """See :class:`hpcdl.nn.backend.CrossEntropy`; ValueError where a label is out of range."""
        if labels.size and not 0 <= labels.min() <= labels.max() < self._classes:
            raise ValueError(
                f"labels from {labels.min()} to {labels.max()}, but classes are 0 to {self._classes - 1}"
            )
        images, label = np.arange(len(logits)), labels.astype(np.intp)
        gradient = allocate(logits.shape, logits.dtype)
        # exp of the largest is 1 then, and the others may underflow to 0 without harm
        np.subtract(logits, logits.max(axis=1, keepdims=True), out=gradient)
        true = gradient[images, label]
        np.exp(gradient, out=gradient)
        total = gradient.sum(axis=1)
        loss = np.sum(np.log(total) - true, dtype=np.float64)
        correct = np.count_nonzero(logits.argmax(axis=1) == label)
        gradient *= (float(scale) / total)[:, np.newaxis]
        gradient[images, label] -= float(scale)
        return float(loss), int(correct), gradient


def channel_sum(x: Array) -> Array:
    """Sum (N, ..., C) to (C,): within each image by BLAS, then over images, which limits rounding errors."""
    n, channels = len(x), x.shape[-1]
    pixels = x[0, ..., 0].size if n else 1
    per_image: Array = np.ones((1, pixels), x.dtype) @ x.reshape(n, pixels, channels)
    total: Array = per_image.sum(axis=(0, 1))
    return total


class BatchNorm(Op[BatchNormGeometry]):
    """Normalise by the batch or by the running statistics; store the normalised input for backward.

    dz = dy where y > 0; without a ReLU dz = dy. dz is also the shortcut's gradient.
    dx = gamma / sqrt(variance + eps) * (dz - mean(dz) - normalised * mean(dz * normalised)).
    An empty batch does not change the running statistics and has zero gradients.
    """

    def __init__(self, geometry: BatchNormGeometry) -> None:
        super().__init__(geometry)
        self._pixels = math.prod(geometry.shape[:-1])
        self._inverse = np.ones(geometry.shape[-1], geometry.dtype)

    def forward(self, x: Array, shortcut: Array | None, vectors: NormVectors, train: bool) -> Array:
        self._saved = ()
        gamma, beta, mean, variance, *_ = vectors
        y, count = allocate(x.shape, x.dtype), len(x) * self._pixels
        normalised = y
        if not train:
            scale = gamma / np.sqrt(variance + self._geometry.eps)
            np.multiply(x, scale, out=y)
            y += beta - mean * scale
        elif count > 0:
            normalised = allocate(x.shape, x.dtype)
            batch_mean = channel_sum(x) / count
            np.subtract(x, batch_mean, out=normalised)
            np.square(normalised, out=y)
            batch_variance = channel_sum(y) / count
            self._update_running(mean, batch_mean)
            self._update_running(variance, batch_variance * (count / max(count - 1, 1)))
            self._inverse = 1 / np.sqrt(batch_variance + self._geometry.eps)
            normalised *= self._inverse
            np.multiply(normalised, gamma, out=y)
            y += beta
        if shortcut is not None:
            y += shortcut
        if self._geometry.relu:
            np.maximum(y, 0, out=y)
        if train:
            self._saved = (normalised, y)
        return y

    def backward(self, dy: Array, vectors: NormVectors) -> tuple[Array, Array | None]:
        (normalised, y), self._saved = self._saved, ()
        *_, dgamma, dbeta = vectors
        count = len(dy) * self._pixels
        dz = rectified_gradient(dy, y) if self._geometry.relu else dy
        dx = allocate(dy.shape, dy.dtype)
        dbeta[...] = channel_sum(dz)
        if count == 0:
            dgamma[...] = 0
        else:
            np.multiply(dz, normalised, out=dx)
            dgamma[...] = channel_sum(dx)
            np.multiply(normalised, dgamma / count, out=dx)
            np.subtract(dz, dx, out=dx)
            dx -= dbeta / count
            dx *= vectors.gamma * self._inverse
        return dx, dz if self._geometry.joined else None

    def _update_running(self, running: Array, batch: Array) -> None:
        running *= self._geometry.momentum
        running += (1 - self._geometry.momentum) * batch


class ResponseNormalization(Op[ResponseGeometry]):
    """y = x scale^-beta with scale = k + alpha / size * (x^2 summed over neighbouring channels).

    dx = dy scale^-beta - 2 alpha beta / size * x * (dy y / scale summed over neighbouring channels).
    """

    def forward(self, x: Array) -> Array:
        self._saved = ()
        geometry = self._geometry
        scale, power, y = (allocate(x.shape, x.dtype) for _ in range(3))
        self._neighbours(x, x, out=scale)
        scale *= geometry.alpha / geometry.size
        scale += geometry.k
        np.power(scale, -geometry.beta, out=power)
        np.multiply(x, power, out=y)
        self._saved = (x, scale, power, y)
        return y

    def backward(self, dy: Array) -> Array:
        (x, scale, power, y), self._saved = self._saved, ()
        geometry = self._geometry
        dx, total = allocate(dy.shape, dy.dtype), allocate(dy.shape, dy.dtype)
        np.divide(y, scale, out=dx)
        self._neighbours(dy, dx, out=total)
        total *= x
        total *= -2 * geometry.alpha * geometry.beta / geometry.size
        np.multiply(dy, power, out=dx)
        dx += total
        return dx

    def _neighbours(self, a: Array, b: Array, out: Array) -> None:
        """Set ``out`` to a * b summed over the ``size`` nearest channels."""
        reach, channels = self._geometry.size // 2, a.shape[-1]
        products = allocate(a.shape, a.dtype)
        np.multiply(a, b, out=products)
        out[...] = products
        for distance in range(1, min(reach, channels - 1) + 1):
            out[..., :-distance] += products[..., distance:]
            out[..., distance:] += products[..., :-distance]
