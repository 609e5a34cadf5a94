"""Local response normalisation and batch normalisation."""

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from hpcdl.fabric.comm import Array
from hpcdl.nn.backend import BatchNormalization, Bound, NormVectors
from hpcdl.nn.geometry import BatchNormGeometry, ResponseGeometry, Shape, as_image
from hpcdl.nn.initial import Initializer, ones, zeros
from hpcdl.nn.layer import Alone, BoundElementary, Plain, Site, Variable


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
        geometry = BatchNormGeometry(shape, self.eps, self.momentum, site.dtype, relu=self.relu)
        return BoundBatchNorm(site.backend.batch_norm(geometry), site)

    def join(self, shape: Shape, site: Site, *, relu: bool) -> "BoundBatchNorm":
        """Bind as the end of a residual block: add the shortcut, then apply a ReLU if ``relu``."""
        geometry = BatchNormGeometry(shape, self.eps, self.momentum, site.dtype, joined=True, relu=relu)
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
