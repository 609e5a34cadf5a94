"""Splits of layers without branches: fully connected, windows by filters or rows, batch normalisation."""

import math
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from hpcdl.fabric.comm import Array
from hpcdl.nn.backend import Bound
from hpcdl.nn.geometry import Blob, Shape, WindowGeometry
from hpcdl.nn.layer import BoundElementary, Site, Variable
from hpcdl.nn.layers import (
    BatchNorm,
    Convolution,
    Linear,
    LocallyConnected,
    MaxPooling,
    WindowPooling,
    norm_vectors,
)
from hpcdl.nn.split.part import Cut, Joint, Layout, Part, along, cut, whole


class BoundBias:
    """(N, F) to (N, F): y = x + bias, then max(y, 0), as far as the fully connected layer has them."""

    def __init__(self, layer: Linear, local: Shape, site: Site) -> None:
        self._bias = None if layer.bias is None else site.value("bias")
        self._dbias = None if layer.bias is None else site.gradient("bias")
        self._relu = site.backend.relu(Blob(local, site.dtype)) if layer.relu else None

    def forward(self, x: Array, train: bool) -> Array:  # noqa: ARG002
        y = x if self._bias is None else x + self._bias
        return y if self._relu is None else self._relu.forward(y)

    def backward(self, dy: Array, needs_dx: bool) -> Array | None:
        dx = dy if self._relu is None else self._relu.backward(dy)
        if self._dbias is not None:
            np.sum(dx, axis=0, out=self._dbias)
        return dx if needs_dx else None


def linear_by_outputs(layer: Linear, shape: Shape, have: Layout, rank: int, ranks: int) -> list[Part]:
    """Split the outputs: every rank takes all inputs and has rows of the weights (Gholami et al. 2018, eq. 3).

    Inputs that are cut are gathered in forward; in backward the ranks' summands of the input gradient are
    reduce-scattered, half of Gholami's all-reduce. B images of d inputs, in elements, all p ranks:

    Forward: (p - 1)*B*d
    Backward: (p - 1)*B*d
    """
    gives = cut((layer.outputs,), 1, ranks, layer=layer.name, noun="outputs")
    low, high = gives.ranges[rank]
    piece = replace(layer, outputs=high - low)
    return [Part(piece, whole(have.shape, ranks), gives, rank, along(layer, shape, slice(low, high)))]


def linear_by_inputs(layer: Linear, shape: Shape, have: Layout, rank: int, ranks: int) -> list[Part]:
    """Split the inputs: a rank multiplies its features by its columns of the weights.

    The ranks' summands of the outputs are reduce-scattered in forward, and the output gradient is gathered in
    backward. Bias and ReLU follow the sum. B images of d outputs, in elements, all p ranks:

    Forward: (p - 1)*B*d
    Backward: (p - 1)*B*d
    """
    takes = cut(shape, 1, ranks, layer=layer.name, noun="inputs") if have.by_images else have
    gives = whole((layer.outputs,), ranks)
    product = replace(layer, bias=None, relu=False)
    weight, *_ = layer.declare(shape)
    columns = slice(*takes.ranges[rank])
    cuts = {"weight": Cut(weight, (layer.outputs, *takes.shape), takes.axis, columns)}
    sums = cut((layer.outputs,), 1, ranks, layer=layer.name, noun="outputs")
    span, local = slice(*sums.ranges[rank]), sums.local(rank)
    biases = {name: part for name, part in along(layer, shape, span).items() if name == "bias"}
    bias = () if layer.bias is None else (Variable("bias", local, layer.bias, rate=layer.rates[1]),)
    finish = Joint(f"{layer.name}.sum", local, partial(BoundBias, layer, local), bias)
    return [Part(product, takes, gives, rank, cuts), Part(finish, sums, sums, rank, biases, layer.name)]


def windowed(
    layer: Convolution | LocallyConnected | WindowPooling, shape: Shape, ranks: int, *, fill: float = 0.0
) -> tuple[Layout, Layout]:
    """Return the layouts of the rows that the ranks' windows read, and of the rows of outputs.

    ::

        rows of the image    0 1 2 3 4 5 6        kernel 3, padding 1: rank 0 has outputs 0 to 3 and reads rows
        rank 0             . = = = = =            -1 to 4, of which row -1 is padding; rank 1 has outputs 4 to 6
        rank 1                     = = = = .      and reads rows 3 to 7

    Rows of the padding have the value ``fill``. ValueError, naming the layer: more ranks than rows of outputs.
    """
    (kernel, _), (stride, _), (padding, _) = layer.window
    gives = cut(layer.output(shape), 1, ranks, layer=layer.name, noun="rows of outputs")
    reads = tuple(
        (low * stride - padding, min((high - 1) * stride - padding + kernel, shape[0] + padding))
        for low, high in gives.ranges
    )
    return Layout(shape, 1, reads, fill), gives


def locally_connected_by_rows(
    layer: LocallyConnected, shape: Shape, _have: Layout, rank: int, ranks: int
) -> list[Part]:
    """Split the image by rows; a rank has the filters of its rows of outputs (Dean et al. 2012, section 3).

    A rank receives its halo: the rows of others that its windows read. In backward it returns their gradients.
    Rank r has the outputs [a_r, b_r) and reads rows [a_r stride - padding, (b_r - 1) stride - padding + k). With h
    rows of halo in all, B images of width W and C channels, in elements, all p ranks:

    Forward: h*B*W*C
    Backward: h*B*W*C
    """
    takes, gives = windowed(layer, shape, ranks)
    piece = replace(layer, padding=(0, layer.window.padding[1]))
    return [Part(piece, takes, gives, rank, along(layer, shape, slice(*gives.ranges[rank])))]


def pooling_by_rows(layer: WindowPooling, shape: Shape, _have: Layout, rank: int, ranks: int) -> list[Part]:
    """Split the image by rows, with the halo of a convolution.

    Rows of the padding are never the maximum; in a mean they count as zeros. With h rows of halo in all, B images
    of width W and C channels, in elements, all p ranks:

    Forward: h*B*W*C
    Backward: h*B*W*C
    """
    fill = -math.inf if isinstance(layer, MaxPooling) else 0.0
    takes, gives = windowed(layer, shape, ranks, fill=fill)
    image, output = takes.local(rank), gives.local(rank)
    return [Part(Joint(layer.name, output, partial(_bind_rows, layer, image, output)), takes, gives, rank)]


def _bind_rows(layer: WindowPooling, image: Shape, output: Shape, site: Site) -> Bound:
    """Bind the pooling of rows that include the vertical padding, to outputs of a given shape."""
    kernel, stride, padding = layer.window
    (height, width, channels), (rows, columns, _) = image, output
    geometry = WindowGeometry(
        (height, width, channels), (rows, columns, channels), kernel, stride, (0, padding[1]), site.dtype
    )
    return BoundElementary(getattr(site.backend, layer.operation)(geometry))


def convolution_by_filters(layer: Convolution, shape: Shape, _have: Layout, rank: int, ranks: int) -> list[Part]:
    """Split the filters: every rank takes all channels (model parallelism; Gholami et al. 2018, eq. 3).

    Inputs that are cut are gathered in forward; in backward the ranks' summands of the input gradient are
    reduce-scattered, half of Gholami's all-reduce. B images of H W C inputs, in elements, all p ranks:

    Forward: (p - 1)*B*H*W*C
    Backward: (p - 1)*B*H*W*C

    ValueError for filters in groups.
    """
    if layer.groups > 1:
        raise ValueError(f"{layer.name}: filters in {layer.groups} groups cannot be split; use groups = 1")
    output = layer.output(shape)
    gives = cut(output, 3, ranks, layer=layer.name, noun="filters")
    low, high = gives.ranges[rank]
    piece = replace(layer, filters=high - low)
    return [Part(piece, whole(shape, ranks), gives, rank, along(layer, shape, slice(low, high)))]


def convolution_by_rows(layer: Convolution, shape: Shape, _have: Layout, rank: int, ranks: int) -> list[Part]:
    """Split the image by rows (domain parallelism; Gholami et al. 2018, section 2.4). Every rank has all weights.

    A rank receives its halo: the rows of others that its windows read. In backward it returns their gradients.
    With h rows of halo in all, B images of H W C inputs, in elements, all p ranks:

    Forward: h*B*W*C
    Backward: h*B*W*C

    For stride 1, an odd kernel (k, k) and padding k//2, h = (p - 1)*2*(k//2), as in the paper.
    """
    takes, gives = windowed(layer, shape, ranks)
    return [Part(replace(layer, padding=(0, layer.window.padding[1])), takes, gives, rank)]


_EXACT: Final = "float64"
"""Dtype of sums over many pixels."""


def batch_norm_by_positions(layer: BatchNorm, shape: Shape, have: Layout, rank: int, ranks: int) -> list[Part]:
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
    rows = tuple((rank * length, (rank + 1) * length) for rank in range(ranks))
    moments = Layout((ranks * length,), 1, rows, of_batch=True)
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
        """See :class:`hpcdl.nn.backend.Bound`; zeros in evaluation, which uses the running statistics."""
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
        kept, mean, variance = self._stash.pop(), self._mean, self._variance
        if train:
            mean, variance = self._pool(x)
        inverse = (1 / np.sqrt(variance + self._layer.eps)).astype(kept.dtype)
        normalised = (kept - mean) * inverse
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
        pixels = float(counts.sum())
        count = max(pixels, 1.0)
        mean = (counts * means).sum(axis=0) / count
        total = (squares + counts * (means - mean) ** 2).sum(axis=0)
        self._pooled = count, len(parts)
        if pixels:
            momentum = self._layer.momentum
            self._mean[...] = momentum * self._mean + (1 - momentum) * mean
            self._variance[...] = momentum * self._variance + (1 - momentum) * total / max(count - 1, 1)
        dtype = moments.dtype
        return mean.astype(dtype), (total / count).astype(dtype)
