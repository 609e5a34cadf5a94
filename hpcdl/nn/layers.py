"""Layers of one op: structure, shapes and parameters without arithmetic.

A layer is a description without memory. It answers three questions about inputs of a shape
(:class:`hpcdl.nn.layer.Layer`)::

    output(shape)      shape of the outputs; ValueError, which names the layer, if there are none
    declare(shape)     variables: name, shape, initial values, weight decay, factor on the learning rate
    bind(shape, site)  the bound layer, which has kernels of the site's backend and views of the flat vectors

So one list of layers serves to train, to count bytes (``volumes.py``) and to simulate. ``alone`` of a class says
which positions it treats independently, so that ranks can have some each (``split/``). No layer computes: its op
comes from the backend, by a geometry.
"""

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import cache
from typing import ClassVar

from hpcdl.fabric.comm import Array
from hpcdl.nn.backend import BatchNormalization, Bound, Concatenation, Elementary, NormVectors
from hpcdl.nn.geometry import (
    BatchNormGeometry,
    Blob,
    ConcatenationGeometry,
    DropoutGeometry,
    Image,
    LinearGeometry,
    Pair,
    ResponseGeometry,
    Rounding,
    Shape,
    Window,
    WindowGeometry,
    as_image,
    pair,
    storage_dtype,
    windows,
)
from hpcdl.nn.layer import (
    Alone,
    BoundAffine,
    BoundElementary,
    Initializer,
    Plain,
    Site,
    Variable,
    he,
    ones,
    per_filter,
    xavier,
    zeros,
)


@dataclass(eq=False)
class _Filters:
    """Filters over the windows of a padded image. An incomplete last window is omitted, as in Caffe.

    ``weight`` and ``bias`` are initialisers; ``bias=None`` omits the bias. With ``relu`` the result is max(y, 0).
    """

    name: str
    filters: int
    kernel: int | Pair
    _: KW_ONLY
    stride: int | Pair = 1
    padding: int | Pair = 0
    weight: Initializer = he
    bias: Initializer | None = zeros
    relu: bool = False
    groups = 1  # a setting of Convolution alone
    operation: ClassVar[str]
    """Name of the backend's operation; see :class:`hpcdl.nn.backend.Backend`."""

    @property
    def window(self) -> Window:
        return Window(pair(self.kernel), pair(self.stride), pair(self.padding))

    def output(self, shape: Shape) -> Shape:
        """Return (P, Q, K); ValueError where the kernel does not fit or the groups do not divide."""
        return self._geometry(shape, "float32").output

    def bind(self, shape: Shape, site: Site) -> Bound:
        op = getattr(site.backend, self.operation)(self._geometry(shape, site.dtype))
        return BoundAffine(op, site, biased=self.bias is not None)

    def _geometry(self, shape: Shape, dtype: str) -> WindowGeometry:
        image, groups = as_image(shape, layer=self.name), self.groups
        if self.filters < 1 or groups < 1 or image[2] % groups or self.filters % groups:
            raise ValueError(
                f"{self.name}: {groups} groups do not divide {image[2]} channels, {self.filters} filters"
            )
        output = (*windows(image[:2], *self.window, "floor", layer=self.name), self.filters)
        return WindowGeometry(image, output, *self.window, dtype, groups, self.relu)


@dataclass(eq=False)
class Convolution(_Filters):
    """(N, H, W, C) to (N, P, Q, K): correlate every window of the padded image with every filter.

    y[p, q, k] = bias[k] + the sum over r, s, c of
                 x[p stride + r - padding, q stride + s - padding, c] weight[k, r, s, c].

    Weights are (K, R, S, C / groups): the filters of group g read the channels of group g (Krizhevsky et al. 2012,
    section 3.2). ``rates`` are the factors on the learning rate of weights and of biases.
    """

    operation = "convolution"
    groups: int = 1
    rates: tuple[float, float] = (1.0, 1.0)

    def declare(self, shape: Shape) -> list[Variable]:
        """Return ``weight`` (K, R, S, C / groups) and ``bias`` (K,)."""
        channels = self._geometry(shape, "float32").image[2] // self.groups
        weight = Variable(
            "weight", (self.filters, *self.window.kernel, channels), self.weight, True, self.rates[0]
        )
        return _with_bias(weight, (self.filters,), self.bias, self.rates[1])


@dataclass(eq=False)
class LocallyConnected(_Filters):
    """(N, H, W, C) to (N, P, Q, K): correlate every window of the padded image with its own filters.

    y[p, q, k] = bias[p, q, k] + the sum over r, s, c of
                 x[p stride + r - padding, q stride + s - padding, c] weight[p, q, k, r, s, c].

    The untied local receptive fields of Le et al. 2012 (section 3) and Dean et al. 2012 (section 5). ``weight``
    fills (P Q K, R, S, C), so its fan-in is R S C.
    """

    operation = "locally_connected"

    def declare(self, shape: Shape) -> list[Variable]:
        """Return ``weight`` (P, Q, K, R, S, C) and ``bias`` (P, Q, K)."""
        geometry = self._geometry(shape, "float32")
        filters = (*geometry.output, *geometry.kernel, geometry.image[2])
        return _with_bias(Variable("weight", filters, per_filter(self.weight), True), geometry.output, self.bias)


@dataclass(eq=False)
class Linear:
    """(N, in) to (N, out): y = x weight^T + bias, with weights (out, in).

    ``weight`` and ``bias`` are initialisers; ``bias=None`` omits the bias. With ``relu`` the result is max(y, 0).
    ``rates`` are the factors on the learning rate of weights and of biases.
    """

    name: str
    outputs: int
    _: KW_ONLY
    weight: Initializer = xavier
    bias: Initializer | None = zeros
    relu: bool = False
    rates: tuple[float, float] = (1.0, 1.0)

    def output(self, shape: Shape) -> Shape:
        """Return (out,); ValueError where the input is not a vector."""
        if len(shape) != 1:
            raise ValueError(f"{self.name}: needs vectors, got shape {shape}; put a Flatten before it")
        if self.outputs < 1:
            raise ValueError(f"{self.name}: needs at least 1 output, got {self.outputs}")
        return (self.outputs,)

    def declare(self, shape: Shape) -> list[Variable]:
        """Return ``weight`` (out, in) and ``bias`` (out,)."""
        weight = Variable("weight", (self.outputs, *shape), self.weight, True, self.rates[0])
        return _with_bias(weight, (self.outputs,), self.bias, self.rates[1])

    def bind(self, shape: Shape, site: Site) -> Bound:
        op = site.backend.linear(LinearGeometry(shape[0], self.outputs, site.dtype, self.relu))
        return BoundAffine(op, site, biased=self.bias is not None)


def _with_bias(weight: Variable, shape: Shape, bias: Initializer | None, rate: float = 1.0) -> list[Variable]:
    return [weight] if bias is None else [weight, Variable("bias", shape, bias, rate=rate)]


class Elementwise(Plain):
    """A layer without parameters that treats each element alone."""

    alone: ClassVar[Alone] = "elements"
    operation: ClassVar[str]
    """Name of the backend's operation; see :class:`hpcdl.nn.backend.Backend`."""

    def bind(self, shape: Shape, site: Site) -> Bound:
        return BoundElementary(getattr(site.backend, self.operation)(Blob(shape, site.dtype)))


class ReLU(Elementwise):
    """y = max(x, 0), of any shape; the gradient at 0 is 0."""

    operation = "relu"


class Sigmoid(Elementwise):
    """y = 1 / (1 + exp(-x)), of any shape."""

    operation = "sigmoid"


@dataclass(eq=False)
class Dropout(Plain):
    """In training, zero a fraction ``ratio`` of the activations and divide the others by 1 - ratio.

    Srivastava et al. 2014; scaled in training as in Caffe, so evaluation is the identity. The masks depend only on
    the replica's last reseed key, the layer's name and the number of forwards since that reseed.
    """

    alone: ClassVar[Alone] = "elements"
    name: str
    ratio: float = 0.5

    def output(self, shape: Shape) -> Shape:
        """Return the input shape; ValueError where the ratio is not in [0, 1)."""
        if not 0 <= self.ratio < 1:
            raise ValueError(f"{self.name}: ratio must be at least 0 and below 1, got {self.ratio}")
        return shape

    def bind(self, shape: Shape, site: Site) -> Bound:
        if site.path in site.continued:
            return BoundElementary(site.continued[site.path].continued(), identity_in_evaluation=True)
        op = site.backend.dropout(DropoutGeometry(shape, self.ratio, site.dtype))
        site.seeded.append((site.path, op))
        return BoundElementary(op, identity_in_evaluation=True)


class Flatten(Plain):
    """(N, H, W, C) to (N, H W C), channels fastest; in Caffe and PyTorch width is fastest."""

    alone: ClassVar[Alone] = "elements"

    def output(self, shape: Shape) -> Shape:
        return (math.prod(shape),)

    def bind(self, shape: Shape, site: Site) -> Bound:  # noqa: ARG002
        return BoundElementary(Reshape(shape))


@dataclass(eq=False)
class Reshape:
    """Op that flattens inputs of a shape without a copy."""

    shape: Shape

    def forward(self, x: Array) -> Array:
        return x.reshape(len(x), math.prod(self.shape))

    def backward(self, dy: Array) -> Array:
        return dy.reshape(len(dy), *self.shape)


@dataclass(eq=False)
class LRN(Plain):
    """y = x / (k + alpha / size * sum of x^2 over the ``size`` nearest channels)^beta.

    Krizhevsky et al. 2012, section 3.3. Alpha is divided by the size, and defaults are Caffe's.
    """

    alone: ClassVar[Alone] = "rows"
    name: str
    size: int = 5
    _: KW_ONLY
    alpha: float = 1e-4
    beta: float = 0.75
    k: float = 1.0

    def output(self, shape: Shape) -> Shape:
        """Return the input shape; ValueError where the size is even, because then no channel is in the middle."""
        if self.size < 1 or self.size % 2 == 0:
            raise ValueError(f"{self.name}: size must be odd and positive, got {self.size}")
        return as_image(shape, layer=self.name)

    def bind(self, shape: Shape, site: Site) -> Bound:
        geometry = ResponseGeometry(shape, self.size, self.alpha, self.beta, self.k, site.dtype)
        return BoundElementary(site.backend.response_normalization(geometry))


@dataclass(eq=False)
class BatchNorm:
    """y = gamma (x - mean) / sqrt(variance + eps) + beta per channel, the last axis (Ioffe & Szegedy 2015).

    Training normalises by the mean and biased variance of this rank's batch (Goyal et al. 2017, section 2.3). It
    updates running = momentum * running + (1 - momentum) * batch, with the unbiased variance. ``momentum`` 0.9
    here is 0.1 in PyTorch. Evaluation normalises by the running statistics. ``gamma`` is an initialiser. With
    ``relu`` the result is max(y, 0).
    """

    alone: ClassVar[Alone] = "channels"
    name: str
    _: KW_ONLY
    eps: float = 1e-5
    momentum: float = 0.9
    gamma: Initializer = ones
    relu: bool = False

    def output(self, shape: Shape) -> Shape:
        """Return the input shape; ValueError where eps or momentum is out of range."""
        if self.eps <= 0 or not 0 <= self.momentum <= 1:
            raise ValueError(
                f"{self.name}: eps must be positive and momentum in [0, 1], got {self.eps}, {self.momentum}"
            )
        return shape

    def declare(self, shape: Shape) -> list[Variable]:
        """Return ``gamma`` and ``beta`` (C,), trained without decay, and state ``mean`` and ``variance`` (C,)."""
        channels = shape[-1:]
        return [
            Variable("gamma", channels, self.gamma),
            Variable("beta", channels, zeros),
            Variable("mean", channels, zeros, trained=False),
            Variable("variance", channels, ones, trained=False),
        ]

    def bind(self, shape: Shape, site: Site) -> Bound:
        return self.join(shape, site, joined=False, relu=self.relu)

    def join(self, shape: Shape, site: Site, *, joined: bool = True, relu: bool) -> "BoundBatchNorm":
        """Bind as the end of a residual block: add the shortcut, then apply a ReLU if ``relu``."""
        geometry = BatchNormGeometry(shape, self.eps, self.momentum, site.dtype, joined, relu)
        return BoundBatchNorm(site.backend.batch_norm(geometry), site)


def norm_vectors(site: Site) -> NormVectors:
    """Return the vectors of the batch normalisation at ``site``."""
    gamma, beta, mean, variance = map(site.value, ("gamma", "beta", "mean", "variance"))
    return NormVectors(gamma, beta, mean, variance, site.gradient("gamma"), site.gradient("beta"))


class BoundBatchNorm:
    """Bound batch normalisation."""

    def __init__(self, op: BatchNormalization, site: Site) -> None:
        self._op = op
        self._vectors = norm_vectors(site)

    def forward(self, x: Array, train: bool, shortcut: Array | None = None) -> Array:
        """See :class:`hpcdl.nn.backend.Bound`; a layer bound by ``join`` adds ``shortcut``."""
        return self._op.forward(x, shortcut, self._vectors, train)

    def backward(self, dy: Array, needs_dx: bool) -> Array | None:
        dx, _ = self.backward_joined(dy)
        return dx if needs_dx else None

    def backward_joined(self, dy: Array) -> tuple[Array, Array | None]:
        """Overwrite the parameters' gradients; return the gradients of the last input and of the shortcut."""
        return self._op.backward(dy, self._vectors)


@dataclass(eq=False)
class WindowPooling(Plain):
    """(N, H, W, C) to (N, P, Q, C): a number for each window and channel; the stride defaults to the kernel.

    ``mode`` is the rounding of an incomplete last window (see :func:`hpcdl.nn.geometry.windows`); Caffe uses
    ``ceil``.
    """

    alone: ClassVar[Alone] = "channels"
    operation: ClassVar[str]
    """Name of the backend's operation; see :class:`hpcdl.nn.backend.Backend`."""
    name: str
    kernel: int | Pair
    _: KW_ONLY
    stride: int | Pair | None = None
    padding: int | Pair = 0
    mode: Rounding = "ceil"

    @property
    def window(self) -> Window:
        return Window(
            pair(self.kernel), pair(self.kernel if self.stride is None else self.stride), pair(self.padding)
        )

    def output(self, shape: Shape) -> Shape:
        """Return (P, Q, C); ValueError where the windows do not fit."""
        return self._geometry(shape, "float32").output

    def bind(self, shape: Shape, site: Site) -> Bound:
        return BoundElementary(getattr(site.backend, self.operation)(self._geometry(shape, site.dtype)))

    def _geometry(self, shape: Shape, dtype: str) -> WindowGeometry:
        image, (kernel, _, padding) = as_image(shape, layer=self.name), self.window
        if padding[0] >= kernel[0] or padding[1] >= kernel[1]:
            raise ValueError(f"{self.name}: padding {padding} leaves windows of {kernel} without a pixel")
        placed = windows(image[:2], *self.window, self.mode, layer=self.name)
        return WindowGeometry(image, (*placed, image[2]), *self.window, dtype)


class MaxPooling(WindowPooling):
    """Maximum of each window. Among equal pixels the first receives the gradient; padding is never the maximum."""

    operation = "max_pooling"


class AveragePooling(WindowPooling):
    """Mean of each window.

    The divisor is the window's size clipped to the padded image, as in Caffe's pooling_layer: padding counts as
    zeros, positions beyond the padding do not count.
    """

    operation = "average_pooling"


class GlobalAverage(Plain):
    """(N, H, W, C) to (N, C): mean of each channel (Lin et al. 2013, section 3.2)."""

    alone: ClassVar[Alone] = "channels"

    def output(self, shape: Shape) -> Shape:
        """Return (C,); ValueError where the input is not an image."""
        return (as_image(shape, layer=self.name)[2],)

    def bind(self, shape: Shape, site: Site) -> Bound:
        return BoundElementary(site.backend.global_average(Blob(shape, site.dtype)))


@dataclass(eq=False)
class Subsampling(Plain):
    """(N, H, W, C) to (N, P, Q, K): every ``stride``-th pixel, with zero channels appended up to ``channels``.

    The identity shortcut with increasing dimensions of He et al. 2015, section 3.3, option A.
    """

    name: str
    channels: int
    _: KW_ONLY
    stride: int | Pair = 2

    @property
    def window(self) -> Window:
        return Window((1, 1), pair(self.stride), (0, 0))

    def output(self, shape: Shape) -> Image:
        """Return (P, Q, K); ValueError where ``channels`` is not larger than the number of input channels."""
        image = as_image(shape, layer=self.name)
        if self.channels <= image[2]:
            raise ValueError(f"{self.name}: needs more than {image[2]} channels, got {self.channels}")
        return (*windows(image[:2], *self.window, "floor", layer=self.name), self.channels)

    def bind(self, shape: Shape, site: Site) -> Bound:
        """See :class:`hpcdl.nn.layer.Layer`; average pooling with a 1x1 kernel selects the pixels."""
        image, output = as_image(shape, layer=self.name), self.output(shape)
        pixels, zeros = (*output[:2], image[2]), (*output[:2], self.channels - image[2])
        pool = site.backend.average_pooling(WindowGeometry(image, pixels, *self.window, site.dtype))
        join = site.backend.concatenation(ConcatenationGeometry((pixels, zeros), site.dtype))
        make, dtype = site.backend.zeros, storage_dtype(site.dtype)
        return BoundSubsampling(
            pool, join, cache(lambda batch: make(batch * math.prod(zeros), dtype).reshape(batch, *zeros))
        )


@dataclass(eq=False)
class BoundSubsampling:
    """Bound subsampling; ``zeros(batch)`` returns the channels to be appended."""

    pool: Elementary
    join: Concatenation
    zeros: Callable[[int], Array]

    def forward(self, x: Array, train: bool) -> Array:  # noqa: ARG002
        return self.join.forward([self.pool.forward(x), self.zeros(len(x))])

    def backward(self, dy: Array, needs_dx: bool) -> Array | None:
        return self.pool.backward(self.join.backward(dy)[0]) if needs_dx else None
