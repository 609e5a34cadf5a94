"""Ops bound by memory: batch normalisation, local response normalisation, maximum pooling."""

from typing import Final

import numpy as np
from numba import prange

from hpcdl.compiled import njit
from hpcdl.fabric.comm import Array
from hpcdl.nn.backend import NormVectors
from hpcdl.nn.geometry import BatchNormGeometry, Pair, ResponseGeometry, WindowGeometry
from hpcdl.nn.kernels.numba.parts import bounds, channel_blocks, kernel
from hpcdl.nn.kernels.numba.vectors import as_pixels
from hpcdl.nn.kernels.numpy.activation_pool import Op, allocate

BLOCK_BYTES: Final = 1 << 14
"""Bytes of pixels per block; a block is read twice, the second time from the first-level cache."""


class BatchNorm(Op[BatchNormGeometry]):
    """Store the input, not a normalised copy; backward computes the normalised values again.

    Means and variances are computed in blocks around each block's mean and pooled in float64 (Chan, Golub &
    LeVeque 1979). One pass over memory is then as exact as two.
    """

    def forward(self, x: Array, shortcut: Array | None, vectors: NormVectors, train: bool) -> Array:
        self._saved = ()
        gamma, beta, mean, variance, *_ = vectors
        geometry, pixels = self._geometry, as_pixels(x)
        batch_mean, batch_variance = mean, variance
        parts = bounds(len(pixels), x.size)
        if train and len(pixels):
            total, squares = _pool_moments(parts, *kernel(parts, _moments, _moments_in_parts)(pixels))
            batch_mean, batch_variance = total.astype(x.dtype), (squares / len(pixels)).astype(x.dtype)
            _update_running(mean, batch_mean, geometry.momentum)
            _update_running(variance, squares / max(len(pixels) - 1, 1), geometry.momentum)
        inverse = (1 / np.sqrt(batch_variance + geometry.eps)).astype(x.dtype)
        y = allocate(x.shape, x.dtype)
        scale, to, added = gamma * inverse, as_pixels(y), pixels[:0] if shortcut is None else as_pixels(shortcut)
        kernel(parts, _apply, _apply_in_parts)(pixels, batch_mean, scale, beta, added, geometry.relu, to)
        if train:
            self._saved = (x, y if geometry.relu else x[:0], batch_mean.copy(), inverse)
        return y

    def backward(self, dy: Array, vectors: NormVectors) -> tuple[Array, Array | None]:
        geometry, (gamma, *_, dgamma, dbeta) = self._geometry, vectors
        (x, y, mean, inverse), self._saved = self._saved, ()
        dx = allocate(dy.shape, dy.dtype)
        dz = allocate(dy.shape, dy.dtype) if geometry.joined and geometry.relu else dy[:0]
        pixels, gradient, output, rectified = as_pixels(x), as_pixels(dy), as_pixels(y), as_pixels(dz)
        parts = bounds(len(gradient), dy.size)
        add = kernel(parts, _sum_gradients, _sum_gradients_in_parts)
        totals, products = add(gradient, pixels, output, mean, rectified)
        dbeta[...] = totals
        dgamma[...] = products * inverse
        if len(dz):
            gradient, output = rectified, output[:0]
        count, to = max(len(gradient), 1), as_pixels(dx)
        scale, slope, shift = gamma * inverse, inverse * dgamma / count, dbeta / count
        apply = kernel(parts, _apply_gradients, _apply_gradients_in_parts)
        apply(gradient, pixels, output, (mean, scale, slope, shift), to)
        return dx, (dz if len(dz) else dy) if geometry.joined else None


def _pool_moments(parts: Array, means: Array, squares: Array) -> tuple[Array, Array]:
    """Return mean and sum of squared deviations of all pixels, from those of the parts, (parts, C)."""
    means, squares = np.atleast_2d(means, squares)  # (C,) of one part
    mean, total = means[0], squares[0]
    for i, end in enumerate(parts[2:], start=1):
        delta, count = means[i] - mean, end - parts[i]
        total = total + squares[i] + delta * delta * (parts[i] * count / end)
        mean = mean + delta * (count / end)
    return mean, total


def _update_running(running: Array, batch: Array, momentum: float) -> None:
    running *= momentum
    running += ((1 - momentum) * batch).astype(running.dtype)


@njit(nogil=True, cache=True, error_model="numpy")
def _moments(x: Array) -> tuple[Array, Array]:
    """Return mean (C,) and sum of squared deviations (C,), both float64, of x (pixels, C)."""
    pixels, channels = x.shape
    mean, squares = np.zeros(channels), np.zeros(channels)
    total, spread = np.empty(channels, x.dtype), np.empty(channels, x.dtype)
    middle, rest = np.empty(channels, x.dtype), np.empty(channels, x.dtype)
    step = max(BLOCK_BYTES // (channels * x.itemsize), 8)
    # Squares of deviations, because the mean of squares less the squared mean cancels where the mean is large.
    for begin in range(0, pixels, step):
        end = min(begin + step, pixels)
        count = end - begin
        total[:] = 0
        spread[:] = 0
        rest[:] = 0
        for i in range(begin, end):
            for c in range(channels):
                total[c] += x[i, c]
        for c in range(channels):
            middle[c] = total[c] / count
        for i in range(begin, end):
            for c in range(channels):
                distance = x[i, c] - middle[c]
                rest[c] += distance
                spread[c] += distance * distance
        weight = count / end
        for c in range(channels):
            # deviations from a rounded mean do not sum to zero: correct the mean by their average
            correction = rest[c] / count
            delta = middle[c] + correction - mean[c]
            squares[c] += spread[c] - correction * rest[c] + delta * delta * begin * weight
            mean[c] += delta * weight
    return mean, squares


@njit(nogil=True, cache=True, parallel=True, error_model="numpy")
def _moments_in_parts(parts: Array, x: Array) -> tuple[Array, Array]:
    means, squares = np.empty((len(parts) - 1, x.shape[1])), np.empty((len(parts) - 1, x.shape[1]))
    for part in prange(len(parts) - 1):
        means[part], squares[part] = _moments(x[parts[part] : parts[part + 1]])
    return means, squares


@njit(nogil=True, cache=True)
def _apply(x: Array, mean: Array, scale: Array, beta: Array, shortcut: Array, relu: bool, y: Array) -> None:
    pixels, channels = x.shape
    zero = x.dtype.type(0)
    for i in range(pixels):
        for c in range(channels):
            y[i, c] = (x[i, c] - mean[c]) * scale[c] + beta[c]
        if len(shortcut):
            for c in range(channels):
                y[i, c] += shortcut[i, c]
        if relu:
            for c in range(channels):
                y[i, c] = max(y[i, c], zero)


@njit(nogil=True, cache=True, parallel=True)
def _apply_in_parts(
    parts: Array, x: Array, mean: Array, scale: Array, beta: Array, shortcut: Array, relu: bool, y: Array
) -> None:
    for part in prange(len(parts) - 1):
        i, j = parts[part], parts[part + 1]
        _apply(x[i:j], mean, scale, beta, shortcut[i:j], relu, y[i:j])


@njit(nogil=True, cache=True)
def _sum_gradients(dy: Array, x: Array, y: Array, mean: Array, dz: Array) -> tuple[Array, Array]:
    """Return the sums over pixels, in float64, of dz and of dz (x - mean); fill dz unless it is empty."""
    pixels, channels = dy.shape
    zero = dy.dtype.type(0)
    totals, products = np.zeros(channels), np.zeros(channels)
    total, product = np.empty(channels, dy.dtype), np.empty(channels, dy.dtype)
    row = np.empty(channels, dy.dtype)
    step = max(BLOCK_BYTES // (channels * dy.itemsize), 8)
    for begin in range(0, pixels, step):
        # Sums of a block are in the precision of the data, which vectorises; blocks are added in float64.
        total[:] = 0
        product[:] = 0
        for i in range(begin, min(begin + step, pixels)):
            if len(y):
                for c in range(channels):
                    row[c] = dy[i, c] if y[i, c] > zero else zero
            else:
                for c in range(channels):
                    row[c] = dy[i, c]
            if len(dz):
                for c in range(channels):
                    dz[i, c] = row[c]
            for c in range(channels):
                total[c] += row[c]
            for c in range(channels):
                product[c] += row[c] * (x[i, c] - mean[c])
        for c in range(channels):
            totals[c] += total[c]
            products[c] += product[c]
    return totals, products


@njit(nogil=True, cache=True, parallel=True)
def _sum_gradients_in_parts(
    parts: Array, dy: Array, x: Array, y: Array, mean: Array, dz: Array
) -> tuple[Array, Array]:
    count = len(parts) - 1
    totals, products = np.empty((count, dy.shape[1])), np.empty((count, dy.shape[1]))
    for part in prange(count):
        i, j = parts[part], parts[part + 1]
        totals[part], products[part] = _sum_gradients(dy[i:j], x[i:j], y[i:j], mean, dz[i:j])
    return totals.sum(axis=0), products.sum(axis=0)


@njit(nogil=True, cache=True)
def _apply_gradients(dy: Array, x: Array, y: Array, vectors: tuple[Array, ...], dx: Array) -> None:
    """Set dx = scale (dz - shift - (x - mean) slope); ``vectors`` (C,): mean, scale, slope, shift."""
    mean, scale, slope, shift = vectors
    pixels, channels = dy.shape
    zero = dy.dtype.type(0)
    for i in range(pixels):
        if len(y):
            for c in range(channels):
                dx[i, c] = dy[i, c] if y[i, c] > zero else zero
        else:
            for c in range(channels):
                dx[i, c] = dy[i, c]
        for c in range(channels):
            dx[i, c] = scale[c] * (dx[i, c] - shift[c] - (x[i, c] - mean[c]) * slope[c])


@njit(nogil=True, cache=True, parallel=True)
def _apply_gradients_in_parts(
    parts: Array, dy: Array, x: Array, y: Array, vectors: tuple[Array, ...], dx: Array
) -> None:
    mean, scale, slope, shift = vectors
    for part in prange(len(parts) - 1):
        i, j = parts[part], parts[part + 1]
        _apply_gradients(dy[i:j], x[i:j], y[i:j], (mean, scale, slope, shift), dx[i:j])


class ResponseNormalization(Op[ResponseGeometry]):
    """y = x scale^-beta with scale = k + alpha / size * (x^2 summed over neighbouring channels).

    dx = dy scale^-beta - 2 alpha beta / size * x * (dy y / scale summed over neighbouring channels). Only the
    input and ``scale`` are stored for backward.
    """

    def forward(self, x: Array) -> Array:
        self._saved = ()
        geometry = self._geometry
        scale, y = allocate(x.shape, x.dtype), allocate(x.shape, x.dtype)
        source, sums, to = as_pixels(x), as_pixels(scale), as_pixels(y)
        numbers = (geometry.size, geometry.alpha, geometry.beta, geometry.k)
        parts = bounds(len(source), x.size)
        kernel(parts, _normalise, _normalise_in_parts)(source, *numbers, sums, to)
        self._saved = (x, scale)
        return y

    def backward(self, dy: Array) -> Array:
        (x, scale), self._saved = self._saved, ()
        geometry = self._geometry
        dx = allocate(dy.shape, dy.dtype)
        gradient, source, sums, to = as_pixels(dy), as_pixels(x), as_pixels(scale), as_pixels(dx)
        numbers = (geometry.size, geometry.alpha, geometry.beta)
        parts = bounds(len(to), x.size)
        kernel(parts, _gradient, _gradient_in_parts)(gradient, source, sums, *numbers, to)
        return dx


@njit(nogil=True, cache=True, error_model="numpy")
def _normalise(x: Array, size: int, alpha: float, beta: float, k: float, scale: Array, y: Array) -> None:
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


@njit(nogil=True, cache=True, parallel=True)
def _normalise_in_parts(
    parts: Array, x: Array, size: int, alpha: float, beta: float, k: float, scale: Array, y: Array
) -> None:
    for part in prange(len(parts) - 1):
        i, j = parts[part], parts[part + 1]
        _normalise(x[i:j], size, alpha, beta, k, scale[i:j], y[i:j])


@njit(nogil=True, cache=True, error_model="numpy")
def _gradient(dy: Array, x: Array, scale: Array, size: int, alpha: float, beta: float, dx: Array) -> None:
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


@njit(nogil=True, cache=True, parallel=True)
def _gradient_in_parts(
    parts: Array, dy: Array, x: Array, scale: Array, size: int, alpha: float, beta: float, dx: Array
) -> None:
    for part in prange(len(parts) - 1):
        i, j = parts[part], parts[part + 1]
        _gradient(dy[i:j], x[i:j], scale[i:j], size, alpha, beta, dx[i:j])


@njit(nogil=True, cache=True, error_model="numpy")
def _negative_power(values: Array, beta: float, power: Array) -> None:
    """Set power = values^-beta; beta = 3/4 (Krizhevsky et al.) uses square roots, which are vectorised."""
    unit = values.dtype.type(1)
    if beta == 0.75:
        for c in range(len(values)):
            root = np.sqrt(values[c])
            power[c] = unit / (root * np.sqrt(root))
    else:
        exponent = values.dtype.type(-beta)
        for c in range(len(values)):
            power[c] = values[c] ** exponent


MAX_PIXELS = 256
"""Largest number of pixels in a window; a byte stores the index of the maximum."""
WHOLE: Final = (0, -1)
"""Range of all blocks of channels."""


class MaxPooling(Op[WindowGeometry]):
    """Maximum of each window; stores the index of the first maximum in a byte. NaN is larger than all numbers."""

    def forward(self, x: Array) -> Array:
        self._saved = ()
        geometry = self._geometry
        y = allocate((len(x), *geometry.output), x.dtype)
        chosen = allocate(y.shape, "uint8")
        window = (geometry.kernel, geometry.stride, geometry.padding)
        blocks = channel_blocks(len(x), x.shape[-1])
        parts = bounds(len(x) * blocks, x.size)
        kernel(parts, _largest, _largest_in_parts)(x, *window, y, chosen, blocks)
        self._saved = (chosen,)
        return y

    def backward(self, dy: Array) -> Array:
        geometry = self._geometry
        (chosen,), self._saved = self._saved, ()
        dx = allocate((len(dy), *geometry.image), dy.dtype)
        window = (geometry.kernel, geometry.stride, geometry.padding)
        blocks = channel_blocks(len(dx), dx.shape[-1])
        parts = bounds(len(dx) * blocks, dx.size)
        kernel(parts, _spread_to_largest, _spread_to_largest_in_parts)(dy, chosen, *window, dx, blocks)
        return dx


@njit(nogil=True, cache=True)
def _inside(position: int, stride: int, padding: int, kernel: int, size: int) -> tuple[int, int, int]:
    """Return the window's first pixel, and begin and end of its offsets that lie on the image."""
    begin = position * stride - padding
    return begin, max(-begin, 0), min(kernel, size - begin)


@njit(nogil=True, cache=True)
def _largest(
    x: Array, kernel: Pair, stride: Pair, padding: Pair, y: Array, chosen: Array, blocks: int, span: Pair = WHOLE
) -> None:
    """Pool the blocks of channels ``span`` of all images, counted through the images."""
    images, height, width, channels = x.shape
    _, rows, columns, _ = y.shape
    indices = np.empty(channels, np.int32)
    for item in range(span[0], images * blocks if span[1] < 0 else span[1]):
        n, c0, c1 = item // blocks, channels * (item % blocks) // blocks, channels * (item % blocks + 1) // blocks
        number, where = np.int32(0), indices[: c1 - c0]
        for p in range(rows):
            top, first, last = _inside(p, stride[0], padding[0], kernel[0], height)
            for q in range(columns):
                left, begin, end = _inside(q, stride[1], padding[1], kernel[1], width)
                best, index = y[n, p, q, c0:c1], chosen[n, p, q, c0:c1]
                number = np.int32(first * kernel[1] + begin)
                pixel = x[n, top + first, left + begin, c0:c1]
                # loops of one type of number are vectorised: indices have the width of float32 until the end
                for c in range(len(where)):
                    best[c] = pixel[c]
                for c in range(len(where)):
                    where[c] = number
                for r in range(first, last):
                    for s in range(begin, end):
                        number = np.int32(r * kernel[1] + s)
                        pixel = x[n, top + r, left + s, c0:c1]
                        for c in range(len(where)):
                            value, most = pixel[c], best[c]
                            # a NaN is larger than all numbers, and the first one stays
                            is_larger = (value > most) | (np.isnan(value) & (not np.isnan(most)))
                            where[c] = number if is_larger else where[c]
                            best[c] = value if is_larger else most
                for c in range(len(where)):
                    index[c] = np.uint8(where[c])


@njit(nogil=True, cache=True, parallel=True)
def _largest_in_parts(
    parts: Array, x: Array, kernel: Pair, stride: Pair, padding: Pair, y: Array, chosen: Array, blocks: int
) -> None:
    for part in prange(len(parts) - 1):
        _largest(x, kernel, stride, padding, y, chosen, blocks, (parts[part], parts[part + 1]))


@njit(nogil=True, cache=True)
def _spread_to_largest(
    dy: Array, chosen: Array, kernel: Pair, stride: Pair, padding: Pair, dx: Array, blocks: int, span: Pair = WHOLE
) -> None:
    """Fill the blocks of channels ``span`` of the input gradient, counted through the images."""
    images, height, width, channels = dx.shape
    _, rows, columns, _ = dy.shape
    zero = dy.dtype.type(0)
    for item in range(span[0], images * blocks if span[1] < 0 else span[1]):
        n, c0, c1 = item // blocks, channels * (item % blocks) // blocks, channels * (item % blocks + 1) // blocks
        dx[n, :, :, c0:c1] = 0
        for p in range(rows):
            top, first, last = _inside(p, stride[0], padding[0], kernel[0], height)
            for q in range(columns):
                left, begin, end = _inside(q, stride[1], padding[1], kernel[1], width)
                gradient, index = dy[n, p, q, c0:c1], chosen[n, p, q, c0:c1]
                for r in range(first, last):
                    for s in range(begin, end):
                        number = np.uint8(r * kernel[1] + s)
                        pixel = dx[n, top + r, left + s, c0:c1]
                        for c in range(len(pixel)):
                            pixel[c] += gradient[c] if index[c] == number else zero


@njit(nogil=True, cache=True, parallel=True)
def _spread_to_largest_in_parts(
    parts: Array, dy: Array, chosen: Array, kernel: Pair, stride: Pair, padding: Pair, dx: Array, blocks: int
) -> None:
    for part in prange(len(parts) - 1):
        _spread_to_largest(dy, chosen, kernel, stride, padding, dx, blocks, (parts[part], parts[part + 1]))
