"""Batch normalisation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdl.nn.geometry import BatchNormGeometry, Shape
from hpcdl.nn.initial import Initializer, ones, zeros
from hpcdl.nn.layer import Variable

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array
    from hpcdl.nn.layer import Bound, Site
    from hpcdl.nn.ops import Normalization


class BatchNorm:
    """y = gamma (x - mean) / sqrt(variance + eps) + beta per channel, the last axis (Ioffe & Szegedy 2015).

    Training normalises by this rank's batch alone (Goyal et al. 2017, section 2.3), biased variance, and
    moves the running statistics: running = momentum * running + (1 - momentum) * batch, with the unbiased
    variance. So ``momentum`` is the share that stays: 0.9 here is 0.1 in PyTorch. Evaluation normalises by
    the running statistics. ``gamma`` is an initialiser: Goyal et al. start each block's last one at zero.
    With ``relu`` what comes out is max(y, 0).
    """

    def __init__(
        self,
        name: str,
        *,
        eps: float = 1e-5,
        momentum: float = 0.9,
        gamma: Initializer = ones,
        relu: bool = False,
    ) -> None:
        self.name = name
        self.eps = eps
        self.momentum = momentum
        self.gamma = gamma
        self.relu = relu

    def output(self, shape: Shape) -> Shape:
        """Return the same shape; ValueError where eps or momentum is out of range."""
        if self.eps <= 0 or not 0 <= self.momentum <= 1:
            raise ValueError(
                f"{self.name}: eps must be positive and momentum in [0, 1], got {self.eps}, {self.momentum}"
            )
        return shape

    def declare(self, shape: Shape) -> list[Variable]:
        """``gamma`` and ``beta`` (C,), trained without decay; state ``mean`` and ``variance`` (C,)."""
        channels = shape[-1:]
        return [
            Variable("gamma", channels, self.gamma),
            Variable("beta", channels, zeros),
            Variable("mean", channels, zeros, trained=False),
            Variable("variance", channels, ones, trained=False),
        ]

    def bind(self, shape: Shape, site: Site) -> Bound:
        """See :class:`hpcdl.nn.layer.Layer`."""
        geometry = BatchNormGeometry(shape, self.eps, self.momentum, site.dtype, relu=self.relu)
        return BoundBatchNorm(site.backend.batch_norm(geometry), site)

    def join(self, shape: Shape, site: Site, *, relu: bool) -> BoundBatchNorm:
        """Bind as the end of a residual block: the shortcut is added, and the sum rectified with ``relu``."""
        geometry = BatchNormGeometry(shape, self.eps, self.momentum, site.dtype, joined=True, relu=relu)
        return BoundBatchNorm(site.backend.batch_norm(geometry), site)


class BoundBatchNorm:
    """Batch normalisation at work."""

    def __init__(self, op: Normalization, site: Site) -> None:
        self._op = op
        self._gamma, self._beta = site.value("gamma"), site.value("beta")
        self._dgamma, self._dbeta = site.gradient("gamma"), site.gradient("beta")
        self._mean, self._variance = site.value("mean"), site.value("variance")

    def forward(self, x: Array, train: bool, shortcut: Array | None = None) -> Array:
        """See :class:`hpcdl.nn.layer.Bound`; ``shortcut`` is what is added, where the layer was joined."""
        return self._op.forward(x, shortcut, self._gamma, self._beta, self._mean, self._variance, train)

    def backward(self, dy: Array, wanted: bool) -> Array | None:
        """See :class:`hpcdl.nn.layer.Bound`."""
        dx, _ = self.backward_joined(dy)
        return dx if wanted else None

    def backward_joined(self, dy: Array) -> tuple[Array, Array | None]:
        """Overwrite the parameters' gradients; return the last input's gradient and the shortcut's."""
        return self._op.backward(dy, self._gamma, self._dgamma, self._dbeta)
