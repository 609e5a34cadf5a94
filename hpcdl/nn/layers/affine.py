"""Layers with weights and a bias: convolution, locally connected, fully connected."""

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from hpcdl.nn.backend import Bound
from hpcdl.nn.geometry import LinearGeometry, Pair, Shape, Window, WindowGeometry, as_image, pair, windows
from hpcdl.nn.initial import Initializer, he, per_filter, xavier, zeros
from hpcdl.nn.layer import BoundAffine, Site, Variable


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
