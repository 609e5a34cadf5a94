"""Batch normalisation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from hpcdl.nn.kernels.numpy.buffer import Buffer
from hpcdl.nn.kernels.numpy.channel_sum import channel_sum

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array
    from hpcdl.nn.geometry import BatchNormGeometry


class BatchNorm:
    """Normalises by the batch or by running statistics; keeps the normalised input for the backward.

    dx = gamma / sqrt(variance + eps) * (dy - mean(dy) - normalised * mean(dy * normalised)).
    An empty batch leaves the running statistics as they are and has gradients of zero.
    """

    def __init__(self, geometry: BatchNormGeometry) -> None:
        self._eps = geometry.eps
        self._momentum = geometry.momentum
        self._pixels = math.prod(geometry.shape[:-1])
        self._y = Buffer(geometry.shape, geometry.dtype)
        self._dx = Buffer(geometry.shape, geometry.dtype)
        self._normalised = Buffer(geometry.shape, geometry.dtype)
        self._product = Buffer(geometry.shape, geometry.dtype)
        self._inverse = np.ones(geometry.shape[-1], geometry.dtype)

    def forward(self, x: Array, gamma: Array, beta: Array, mean: Array, variance: Array, train: bool) -> Array:
        """See :class:`hpcdl.nn.ops.Normalization`."""
        y = self._y.rows(len(x))
        if not train:
            scale = gamma / np.sqrt(variance + self._eps)
            np.multiply(x, scale, out=y)
            y += beta - mean * scale
            return y
        normalised, count = self._normalised.rows(len(x)), len(x) * self._pixels
        if count == 0:
            return y
        batch_mean = channel_sum(x) / count
        np.subtract(x, batch_mean, out=normalised)
        batch_variance = self._sum_of_products(normalised, normalised) / count
        self._move(mean, batch_mean)
        self._move(variance, batch_variance * (count / max(count - 1, 1)))
        self._inverse = 1 / np.sqrt(batch_variance + self._eps)
        normalised *= self._inverse
        np.multiply(normalised, gamma, out=y)
        y += beta
        return y

    def backward(self, dy: Array, gamma: Array, dgamma: Array, dbeta: Array) -> Array:
        """See :class:`hpcdl.nn.ops.Normalization`."""
        normalised, dx, count = self._normalised.rows(len(dy)), self._dx.rows(len(dy)), len(dy) * self._pixels
        dbeta[...] = channel_sum(dy)
        dgamma[...] = self._sum_of_products(dy, normalised)
        if count == 0:
            return dx
        np.multiply(normalised, dgamma / count, out=dx)
        np.subtract(dy, dx, out=dx)
        dx -= dbeta / count
        dx *= gamma * self._inverse
        return dx

    def _move(self, running: Array, batch: Array) -> None:
        running *= self._momentum
        running += (1 - self._momentum) * batch

    def _sum_of_products(self, a: Array, b: Array) -> Array:
        product = self._product.rows(len(a))
        np.multiply(a, b, out=product)
        return channel_sum(product)
