"""Top-k: the entries with the largest magnitudes."""

from typing import Final

import numpy as np

from hpcdl.compression.parts.protocol import Compression, Layout, Sparse, kernels
from hpcdl.compression.parts.selection import check_density, draw_seed, entries, put, top
from hpcdl.fabric.comm import Array

TRAITS: Final = Compression(both_ways=True, on_device=True, title="Aji and Heafield 2017")


class TopK:
    """Send the share ``density`` of entries with the largest magnitudes, exactly; the rest stays.

    A server selects entries of the sum again, with a residual of its own (DoubleSqueeze, Tang et al. 2019).
    """

    signs = False

    def __init__(self, layout: Layout, *, density: float = 0.001) -> None:
        check_density(density)
        self.state: dict[str, Array] = {}
        self._layout = layout
        self._density = density

    def most(self, span: slice) -> int:
        return entries(self._density, span.stop - span.start)

    def expected(self, span: slice) -> int | None:
        return self.most(span)

    def select(self, span: slice, vector: Array, step: int) -> Sparse:
        device = self._layout.device
        seed = draw_seed(self._layout, span.start, step)
        positions = top(vector, span.start, self.most(span), seed, device)
        values = kernels(device, "entries").take(vector, positions)
        put(Sparse(positions, np.zeros_like(values)), vector, device)
        return Sparse(positions, values)
