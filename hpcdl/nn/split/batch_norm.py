"""Batch normalisation of activations that are cut by positions: rows of images, or images."""

from functools import partial
from typing import Final

import numpy as np

from hpcdl.fabric.comm import Array
from hpcdl.nn.geometry import Shape
from hpcdl.nn.layer import Site
from hpcdl.nn.layers.normalization import BatchNorm, norm_vectors
from hpcdl.nn.split.layout import Layout
from hpcdl.nn.split.part import Joint, Part

_EXACT: Final = "float64"
"""Dtype of sums over many pixels."""


def by_positions(layer: BatchNorm, shape: Shape, have: Layout, rank: int, ranks: int) -> list[Part]:
    """Normalise by the statistics of the whole group's batch (Dryden et al. 2019, section 3.2).

    Each rank gives the mean, the summed squared deviations and the number of its pixels, which all ranks gather
    and pool (Chan, Golub & LeVeque 1979). In backward each rank receives the sums over all ranks of dz and of dz
    times the normalised values. For a flow of activations this is a gather of one row for the whole batch
    (:attr:`Layout.of_batch`), and a reduce-scatter in backward. C channels, in elements, all p ranks:

    Forward: (p - 1)*p*(2*C + 1)
    Backward: (p - 1)*p*(2*C + 1)

    Sums of x and of x^2, as in the paper, would be as many numbers, but lose digits where the mean is large.
    """
    length = 2 * shape[-1] + 1
    cut = tuple((rank * length, (rank + 1) * length) for rank in range(ranks))
    moments = Layout((ranks * length,), 1, cut, of_batch=True)
    gathered = Layout((ranks * length,), 1, ((0, ranks * length),) * ranks, of_batch=True)
    local = have.array(rank, shape)
    first = Joint(f"{layer.name}.moments", (length,), partial(BoundMoments, layer.name))
    second = Joint(
        layer.name, layer.output(local), partial(BoundNormalisation, layer), tuple(layer.declare(local))
    )
    return [
        Part(first, have, moments, rank, of=layer.name, stashes=True),
        Part(second, gathered, have, rank, stashes=True),
    ]


class BoundMoments:
    """Mean, summed squared deviations and number of a rank's pixels: (N, ..., C) to one row of 2 C + 1.

    They leave their input for the normalisation, which leaves its values for backward.
    """

    def __init__(self, of: str, site: Site) -> None:
        self._stash = site.stash(of)

    def forward(self, x: Array, train: bool) -> Array:
        """See :class:`hpcdl.nn.ops.Bound`; zeros in evaluation, which uses the running statistics."""
        self._stash.append(x)
        channels = x.shape[-1]
        pixels = x.reshape(-1, channels)
        sums: Array = np.zeros_like(x, shape=(1, 2 * channels + 1))
        if train and len(pixels):
            sums[0, :channels] = pixels.mean(axis=0, dtype=_EXACT)
            sums[0, channels:-1] = np.square(pixels - sums[0, :channels]).sum(axis=0, dtype=_EXACT)
            sums[0, -1] = len(pixels)
        return sums

    def backward(self, dy: Array, needs_dx: bool) -> Array | None:
        """Return scale (dz - mean(dz) - normalised mean(dz normalised)); ``dy`` has the means over all pixels."""
        scale, normalised, dz = (self._stash.pop() for _ in range(3))
        if not needs_dx:
            return None
        shift, slope = dy[0, :-1].reshape(2, -1)
        dx: Array = normalised * -slope
        dx += dz
        dx -= shift
        dx *= scale
        return dx


class BoundNormalisation:
    """Batch normalisation by the gathered moments of all ranks, and its ReLU.

    Backward gives every rank's moments this rank's summands of the means.
    """

    def __init__(self, layer: BatchNorm, site: Site) -> None:
        self._layer = layer
        self._stash = site.stash(layer.name)
        self._gamma, self._beta, self._mean, self._variance, self._dgamma, self._dbeta = norm_vectors(site)
        self._saved: tuple[Array, ...] = ()
        self._pooled = (1.0, 0)

    def forward(self, x: Array, train: bool) -> Array:
        own, mean, variance = self._stash.pop(), self._mean, self._variance
        if train:
            mean, variance = self._pool(x)
        inverse = (1 / np.sqrt(variance + self._layer.eps)).astype(own.dtype)
        normalised = (own - mean) * inverse
        y: Array = normalised * self._gamma
        y += self._beta
        if self._layer.relu:
            np.maximum(y, 0, out=y)
        if train:
            self._saved = (normalised, y, self._gamma * inverse)
        return y

    def backward(self, dy: Array, needs_dx: bool) -> Array | None:  # noqa: ARG002
        (normalised, y, scale), self._saved = self._saved, ()
        dz = dy * (y > 0) if self._layer.relu else dy
        every = tuple(range(dz.ndim - 1))
        self._dbeta[...] = dz.sum(axis=every, dtype=_EXACT)
        self._dgamma[...] = (dz * normalised).sum(axis=every, dtype=_EXACT)
        self._stash += [dz, normalised, scale]
        count, ranks = self._pooled
        channels = len(self._gamma)
        summands: Array = np.zeros_like(dy, shape=(1, ranks, 2 * channels + 1))
        summands[..., :channels] = self._dbeta / count
        summands[..., channels:-1] = self._dgamma / count
        return summands.reshape(1, -1)

    def _pool(self, moments: Array) -> tuple[Array, Array]:
        """Return the mean and the biased variance of all ranks' pixels; update the running ones."""
        parts = moments.reshape(-1, 2 * len(self._gamma) + 1).astype(_EXACT)
        means, squares, counts = parts[:, : len(self._gamma)], parts[:, len(self._gamma) : -1], parts[:, -1:]
        found = float(counts.sum())
        count = max(found, 1.0)
        mean = (counts * means).sum(axis=0) / count
        total = (squares + counts * (means - mean) ** 2).sum(axis=0)
        self._pooled = count, len(parts)
        if found:
            momentum = self._layer.momentum
            self._mean[...] = momentum * self._mean + (1 - momentum) * mean
            self._variance[...] = momentum * self._variance + (1 - momentum) * total / max(count - 1, 1)
        dtype = moments.dtype
        return mean.astype(dtype), (total / count).astype(dtype)
