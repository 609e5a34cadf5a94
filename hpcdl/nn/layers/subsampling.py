"""Shortcut of a residual block that halves the image: take every second pixel, append zero channels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdl.nn.geometry import ConcatenationGeometry, Pair, PoolingGeometry, Shape, as_image, pair, windows
from hpcdl.nn.precision import storage_dtype

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array
    from hpcdl.nn.bound import Bound
    from hpcdl.nn.layer import Site, Variable
    from hpcdl.nn.ops import Concatenation, Elementary


class Subsampling:
    """(N, H, W, C) to (N, P, Q, K): every ``stride``-th pixel, with zero channels appended up to ``channels``.

    The identity shortcut with increasing dimensions of He et al. 2015, section 3.3, option A.
    """

    def __init__(self, name: str, channels: int, *, stride: int | Pair = 2) -> None:
        self.name = name
        self.channels = channels
        self.stride = pair(stride)

    def output(self, shape: Shape) -> Shape:
        """Return (P, Q, K); ValueError where ``channels`` is not larger than the number of input channels."""
        image = as_image(shape, layer=self.name)
        if self.channels <= image[2]:
            raise ValueError(f"{self.name}: needs more than {image[2]} channels, got {self.channels}")
        return (*windows(image[:2], (1, 1), self.stride, (0, 0), "floor", layer=self.name), self.channels)

    def declare(self, shape: Shape) -> list[Variable]:  # noqa: ARG002
        """Nothing."""
        return []

    def bind(self, shape: Shape, site: Site) -> Bound:
        """See :class:`hpcdl.nn.layer.Layer`; average pooling with a 1x1 kernel selects the pixels."""
        image, output = as_image(shape, layer=self.name), self.output(shape)
        pixels = (*output[:2], image[2])
        zeros = (*output[:2], self.channels - image[2])
        pooling = PoolingGeometry(image, (output[0], output[1], image[2]), (1, 1), self.stride, (0, 0), site.dtype)
        joining = ConcatenationGeometry((pixels, zeros), site.dtype)
        return BoundSubsampling(
            site.backend.average_pooling(pooling), site.backend.concatenation(joining), zeros, site
        )


class BoundSubsampling:
    """Bound subsampling."""

    def __init__(self, pool: Elementary, join: Concatenation, zeros: Shape, site: Site) -> None:
        self._pool = pool
        self._join = join
        self._shape = zeros
        self._site = site
        self._zeros: Array | None = None

    def forward(self, x: Array, train: bool) -> Array:  # noqa: ARG002
        """See :class:`hpcdl.nn.bound.Bound`."""
        return self._join.forward([self._pool.forward(x), self._zero_channels(len(x))])

    def backward(self, dy: Array, needs_dx: bool) -> Array | None:
        """See :class:`hpcdl.nn.bound.Bound`."""
        return self._pool.backward(self._join.backward(dy)[0]) if needs_dx else None

    def _zero_channels(self, batch: int) -> Array:
        if self._zeros is None or len(self._zeros) < batch:
            rows, columns, channels = self._shape
            size = batch * rows * columns * channels
            zeros = self._site.backend.zeros(size, storage_dtype(self._site.dtype))
            self._zeros = zeros.reshape(batch, rows, columns, channels)
        return self._zeros[:batch]
