"""Convolution, and locally connected layers."""

from __future__ import annotations

from hpcdl.nn.geometry import ConvolutionGeometry, LocallyConnectedGeometry, Pair, Shape, as_image, pair, windows
from hpcdl.nn.initial import Initializer, he, per_filter, zeros
from hpcdl.nn.layer import BoundAffine, Site, Variable
from hpcdl.nn.ops import Bound


class Convolution:
    """(N, H, W, C) to (N, P, Q, K): correlate every window of the padded image with every filter.

    y[p, q, k] = bias[k] + the sum over r, s, c of
                 x[p stride + r - padding, q stride + s - padding, c] weight[k, r, s, c].

    Weights are (K, R, S, C / groups): the filters of group g read the channels of group g (Krizhevsky et al. 2012,
    section 3.2). An incomplete last window is omitted, as in Caffe.

    ``weight`` and ``bias`` are initialisers; ``bias=None`` omits the bias. With ``relu`` the result is max(y, 0).
    ``rates`` are the factors on the learning rate of weights and of biases.
    """

    def __init__(
        self,
        name: str,
        filters: int,
        kernel: int | Pair,
        *,
        stride: int | Pair = 1,
        padding: int | Pair = 0,
        groups: int = 1,
        weight: Initializer = he,
        bias: Initializer | None = zeros,
        relu: bool = False,
        rates: tuple[float, float] = (1.0, 1.0),
    ) -> None:
        self.name = name
        self.filters = filters
        self.kernel = pair(kernel)
        self.stride = pair(stride)
        self.padding = pair(padding)
        self.groups = groups
        self.weight = weight
        self.bias = bias
        self.relu = relu
        self.rates = rates

    def output(self, shape: Shape) -> Shape:
        """Return (P, Q, K); ValueError where the kernel does not fit or the groups do not divide."""
        return self._geometry(shape, "float32").output

    def declare(self, shape: Shape) -> list[Variable]:
        """Return ``weight`` (K, R, S, C / groups) and ``bias`` (K,)."""
        channels = self._geometry(shape, "float32").image[2]
        shape = (self.filters, *self.kernel, channels // self.groups)
        declared = [Variable("weight", shape, self.weight, decay=True, rate=self.rates[0])]
        if self.bias is not None:
            declared.append(Variable("bias", (self.filters,), self.bias, rate=self.rates[1]))
        return declared

    def bind(self, shape: Shape, site: Site) -> Bound:
        op = site.backend.convolution(self._geometry(shape, site.dtype))
        return BoundAffine(op, site, biased=self.bias is not None)

    def _geometry(self, shape: Shape, dtype: str) -> ConvolutionGeometry:
        image = as_image(shape, layer=self.name)
        if self.filters < 1 or self.groups < 1 or image[2] % self.groups or self.filters % self.groups:
            raise ValueError(
                f"{self.name}: {self.groups} groups do not divide {image[2]} channels, {self.filters} filters"
            )
        placed = windows(image[:2], self.kernel, self.stride, self.padding, "floor", layer=self.name)
        output = (*placed, self.filters)
        return ConvolutionGeometry(
            image, output, self.kernel, self.stride, self.padding, self.groups, dtype, self.relu
        )


class LocallyConnected:
    """(N, H, W, C) to (N, P, Q, K): correlate every window of the padded image with its own filters.

    y[p, q, k] = bias[p, q, k] + the sum over r, s, c of
                 x[p stride + r - padding, q stride + s - padding, c] weight[p, q, k, r, s, c].

    The untied local receptive fields of Le et al. 2012 (section 3) and Dean et al. 2012 (section 5). An
    incomplete last window is omitted, as in a convolution.

    ``weight`` and ``bias`` are initialisers. ``weight`` fills (P Q K, R, S, C), so its fan-in is R S C.
    ``bias=None`` omits the bias. With ``relu`` the result is max(y, 0).
    """

    def __init__(
        self,
        name: str,
        filters: int,
        kernel: int | Pair,
        *,
        stride: int | Pair = 1,
        padding: int | Pair = 0,
        weight: Initializer = he,
        bias: Initializer | None = zeros,
        relu: bool = False,
    ) -> None:
        self.name = name
        self.filters = filters
        self.kernel = pair(kernel)
        self.stride = pair(stride)
        self.padding = pair(padding)
        self.weight = weight
        self.bias = bias
        self.relu = relu

    def output(self, shape: Shape) -> Shape:
        """Return (P, Q, K); ValueError where the kernel does not fit."""
        return self._geometry(shape, "float32").output

    def declare(self, shape: Shape) -> list[Variable]:
        """Return ``weight`` (P, Q, K, R, S, C) and ``bias`` (P, Q, K)."""
        geometry = self._geometry(shape, "float32")
        weight = (*geometry.output, *self.kernel, geometry.image[2])
        declared = [Variable("weight", weight, per_filter(self.weight), decay=True)]
        if self.bias is not None:
            declared.append(Variable("bias", geometry.output, self.bias))
        return declared

    def bind(self, shape: Shape, site: Site) -> Bound:
        op = site.backend.locally_connected(self._geometry(shape, site.dtype))
        return BoundAffine(op, site, biased=self.bias is not None)

    def _geometry(self, shape: Shape, dtype: str) -> LocallyConnectedGeometry:
        image = as_image(shape, layer=self.name)
        if self.filters < 1:
            raise ValueError(f"{self.name}: needs at least 1 filter, got {self.filters}")
        placed = windows(image[:2], self.kernel, self.stride, self.padding, "floor", layer=self.name)
        output = (*placed, self.filters)
        return LocallyConnectedGeometry(image, output, self.kernel, self.stride, self.padding, dtype, self.relu)
