"""Batch normalisation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from hpcdl.nn.kernels.numpy.channel_sum import channel_sum
from hpcdl.nn.kernels.numpy.memory import lend

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array
    from hpcdl.nn.geometry import BatchNormGeometry


class BatchNorm:
    """Normalises by the batch or by running statistics; keeps the normalised input for the backward.

    dz = dy where y > 0, dy without a ReLU; it is the shortcut's gradient.
    dx = gamma / sqrt(variance + eps) * (dz - mean(dz) - normalised * mean(dz * normalised)).
    An empty batch leaves the running statistics as they are and has gradients of zero.
    """

    def __init__(self, geometry: BatchNormGeometry) -> None:
        self._geometry = geometry
        self._pixels = math.prod(geometry.shape[:-1])
        self._inverse = np.ones(geometry.shape[-1], geometry.dtype)
        self._kept: tuple[Array, ...] = ()

    def forward(
        self,
        x: Array,
        shortcut: Array | None,
        gamma: Array,
        beta: Array,
        mean: Array,
        variance: Array,
        train: bool,
    ) -> Array:
        """See :class:`hpcdl.nn.ops.Normalization`."""
        self._kept = ()
        y, count = lend(x.shape, x.dtype), len(x) * self._pixels
        normalised = y
        if not train:
            scale = gamma / np.sqrt(variance + self._geometry.eps)
            np.multiply(x, scale, out=y)
            y += beta - mean * scale
        elif count > 0:
            normalised = lend(x.shape, x.dtype)
            batch_mean = channel_sum(x) / count
            np.subtract(x, batch_mean, out=normalised)
            np.square(normalised, out=y)
            batch_variance = channel_sum(y) / count
            self._move(mean, batch_mean)
            self._move(variance, batch_variance * (count / max(count - 1, 1)))
            self._inverse = 1 / np.sqrt(batch_variance + self._geometry.eps)
            normalised *= self._inverse
            np.multiply(normalised, gamma, out=y)
            y += beta
        if shortcut is not None:
            y += shortcut
        if self._geometry.relu:
            np.maximum(y, 0, out=y)
        if train:
            self._kept = (normalised, y)
        return y

    def backward(self, dy: Array, gamma: Array, dgamma: Array, dbeta: Array) -> tuple[Array, Array | None]:
        """See :class:`hpcdl.nn.ops.Normalization`."""
        (normalised, y), self._kept = self._kept, ()
        count = len(dy) * self._pixels
        dz = dy
        if self._geometry.relu:
            dz = lend(dy.shape, dy.dtype)
            np.multiply(dy, np.greater(y, 0), out=dz)
        dx = lend(dy.shape, dy.dtype)
        dbeta[...] = channel_sum(dz)
        if count == 0:
            dgamma[...] = 0
        else:
            np.multiply(dz, normalised, out=dx)
            dgamma[...] = channel_sum(dx)
            np.multiply(normalised, dgamma / count, out=dx)
            np.subtract(dz, dx, out=dx)
            dx -= dbeta / count
            dx *= gamma * self._inverse
        return dx, dz if self._geometry.joined else None

    def _move(self, running: Array, batch: Array) -> None:
        running *= self._geometry.momentum
        running += (1 - self._geometry.momentum) * batch
