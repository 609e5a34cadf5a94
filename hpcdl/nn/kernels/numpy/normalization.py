"""Batch normalisation and local response normalisation."""

import math

import numpy as np

from hpcdl.fabric.comm import Array
from hpcdl.nn.backend import NormVectors
from hpcdl.nn.geometry import BatchNormGeometry, ResponseGeometry
from hpcdl.nn.kernels.numpy.activation_pool import Op, allocate
from hpcdl.nn.kernels.numpy.affine import channel_sum
from hpcdl.nn.kernels.numpy.elementwise import rectified_gradient


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
