"""Local response normalisation across channels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba import njit

from hpcdl.nn.kernels.numba.packing import as_pixels
from hpcdl.nn.kernels.numpy.activation_pool import allocate
from hpcdl.nn.threads import parallel_ranges

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array
    from hpcdl.nn.geometry import ResponseGeometry


class ResponseNormalization:
    """y = x scale^-beta with scale = k + alpha / size * (x^2 summed over neighbouring channels).

    dx = dy scale^-beta - 2 alpha beta / size * x * (dy y / scale summed over neighbouring channels). Only the
    input and ``scale`` are stored for backward.
    """

    def __init__(self, geometry: ResponseGeometry) -> None:
        self._geometry = geometry
        self._saved: tuple[Array, ...] = ()

    def forward(self, x: Array) -> Array:
        """See :class:`hpcdl.nn.ops.Elementary`."""
        self._saved = ()
        geometry = self._geometry
        scale, y = allocate(x.shape, x.dtype), allocate(x.shape, x.dtype)
        source, sums, to = as_pixels(x), as_pixels(scale), as_pixels(y)

        def normalise(i: int, j: int) -> None:
            settings = (geometry.size, geometry.alpha, geometry.beta, geometry.k)
            _normalise(source[i:j], *settings, sums[i:j], to[i:j])

        parallel_ranges(len(source), normalise, elements=x.size)
        self._saved = (x, scale)
        return y

    def backward(self, dy: Array) -> Array:
        """See :class:`hpcdl.nn.ops.Elementary`."""
        (x, scale), self._saved = self._saved, ()
        geometry = self._geometry
        dx = allocate(dy.shape, dy.dtype)
        gradient, source, sums, to = as_pixels(dy), as_pixels(x), as_pixels(scale), as_pixels(dx)

        def differentiate(i: int, j: int) -> None:
            settings = (geometry.size, geometry.alpha, geometry.beta)
            _gradient(gradient[i:j], source[i:j], sums[i:j], *settings, to[i:j])

        parallel_ranges(len(source), differentiate, elements=x.size)
        return dx


@njit(nogil=True, cache=True, error_model="numpy")
def _normalise(x: Any, size: int, alpha: float, beta: float, k: float, scale: Any, y: Any) -> None:
    pixels, channels = x.shape
    reach = size // 2
    squares = np.zeros(channels + 2 * reach, x.dtype)  # zeros beyond the first and last channel
    share, least = x.dtype.type(alpha / size), x.dtype.type(k)
    power = np.empty(channels, x.dtype)
    for i in range(pixels):
        for c in range(channels):
            squares[reach + c] = x[i, c] * x[i, c]
        row = scale[i]
        for c in range(channels):
            row[c] = squares[c]
        for j in range(1, size):
            for c in range(channels):
                row[c] += squares[c + j]
        for c in range(channels):
            row[c] = least + share * row[c]
        _negative_power(row, beta, power)
        for c in range(channels):
            y[i, c] = x[i, c] * power[c]


@njit(nogil=True, cache=True, error_model="numpy")
def _gradient(dy: Any, x: Any, scale: Any, size: int, alpha: float, beta: float, dx: Any) -> None:
    pixels, channels = x.shape
    reach = size // 2
    ratios = np.zeros(channels + 2 * reach, x.dtype)
    factor = x.dtype.type(-2 * alpha * beta / size)
    power, total = np.empty(channels, x.dtype), np.empty(channels, x.dtype)
    for i in range(pixels):
        _negative_power(scale[i], beta, power)
        for c in range(channels):
            ratios[reach + c] = dy[i, c] * x[i, c] * power[c] / scale[i, c]
        for c in range(channels):
            total[c] = ratios[c]
        for j in range(1, size):
            for c in range(channels):
                total[c] += ratios[c + j]
        for c in range(channels):
            dx[i, c] = dy[i, c] * power[c] + factor * x[i, c] * total[c]


@njit(nogil=True, cache=True, error_model="numpy")
def _negative_power(values: Any, beta: float, power: Any) -> None:
    """Set power = values^-beta; beta = 3/4 (Krizhevsky et al.) uses square roots, which are vectorised."""
    one = values.dtype.type(1)
    if beta == 0.75:
        for c in range(len(values)):
            root = np.sqrt(values[c])
            power[c] = one / (root * np.sqrt(root))
    else:
        exponent = values.dtype.type(-beta)
        for c in range(len(values)):
            power[c] = values[c] ** exponent
