"""Local response normalisation across channels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdl.nn.bound_ops import BoundElementary
from hpcdl.nn.geometry import ResponseGeometry, Shape, as_image

if TYPE_CHECKING:
    from hpcdl.nn.bound import Bound
    from hpcdl.nn.layer import Site, Variable


class LRN:
    """y = x / (k + alpha / size * sum of x^2 over the ``size`` nearest channels)^beta.

    Krizhevsky et al. 2012, section 3.3. Alpha is divided by the size, and defaults are Caffe's.
    """

    def __init__(
        self, name: str, size: int = 5, *, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
    ) -> None:
        self.name = name
        self.size = size
        self.alpha = alpha
        self.beta = beta
        self.k = k

    def output(self, shape: Shape) -> Shape:
        """Return the input shape; ValueError where the size is even, because then no channel is in the middle."""
        if self.size < 1 or self.size % 2 == 0:
            raise ValueError(f"{self.name}: size must be odd and positive, got {self.size}")
        return as_image(shape, layer=self.name)

    def declare(self, shape: Shape) -> list[Variable]:  # noqa: ARG002
        """Nothing."""
        return []

    def bind(self, shape: Shape, site: Site) -> Bound:
        """See :class:`hpcdl.nn.layer.Layer`."""
        geometry = ResponseGeometry(shape, self.size, self.alpha, self.beta, self.k, site.dtype)
        return BoundElementary(site.backend.response_normalization(geometry))
