"""Top-k: the entries with the largest magnitudes."""

from typing import Final

import numpy as np

from hpcdl.compression.parts.protocol import Compression, Layout, Sparse
from hpcdl.compression.parts.selection import Search, check_density, entries
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
        self._search = Search(layout)
        self._density = density

    def most(self, span: slice) -> int:
        return entries(self._density, span.stop - span.start)

    def expected(self, span: slice) -> int | None:
        return self.most(span)

    def select(self, span: slice, vector: Array, step: int) -> Sparse:
        positions = self._search.top(vector, span.start, step, self.most(span))
        values = self._search.kernels.take(vector, positions)
        self._search.kernels.put(positions, np.zeros_like(values), vector)
        return Sparse(positions, values)
