"""Local response normalisation across channels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdl.nn.bound import BoundElementary
from hpcdl.nn.geometry import ResponseGeometry, Shape, as_image

if TYPE_CHECKING:
    from hpcdl.nn.layer import Bound, Site, Variable


class LRN:
    """y = x / (k + alpha / size * sum of x^2 over the ``size`` channels around)^beta, beyond the edges 0.

    Krizhevsky et al. 2012, section 3.3, with Caffe's division of alpha by the size and Caffe's defaults.
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
        """Return the same shape; ValueError where the size is even, so that no channel is the middle one."""
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
