"""Random-k: a random subset of the entries, the same on all ranks."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from hpcdl.compression.parts.protocol import Compression, Layout, check_finite, to_device
from hpcdl.compression.parts.selection import check_density, draw_seed, entries, subset
from hpcdl.fabric.comm import Array

TRAITS: Final = Compression(on_device=True, title="Stich 2018")


class RandomK:
    """Sum the share ``density`` of entries, drawn again in each step (Stich 2018, definition 2.1).

    All ranks draw the same positions from the seed, so that no positions are sent and any aggregation sums the
    values. Without error feedback the sum is divided by the share, which makes it unbiased.
    """

    def __init__(self, layout: Layout, *, density: float = 0.01) -> None:
        check_density(density)
        self.state: dict[str, Array] = {}
        self._layout = layout
        self._density = density

    def lengths(self, span: slice) -> list[tuple[int, str]]:
        return [(entries(self._density, span.stop - span.start), self._layout.dtype)]

    def rounds(self, span: slice, vector: Array, residual: Array | None, step: int) -> Iterator[Array]:
        check_finite(np.isfinite(vector).all())
        positions = self._positions(span, step)
        values = vector[positions]
        if residual is not None:
            residual[:] = vector
            residual[positions] = 0
        yield values
        self.restore(span, values, vector, step, fed_back=residual is not None)

    def restore(self, span: slice, sent: Array, vector: Array, step: int, *, fed_back: bool) -> None:
        check_finite(np.isfinite(sent).all())
        factor = 1 if fed_back else len(vector) / max(1, len(sent))
        vector[:] = 0
        vector[self._positions(span, step)] = sent * vector.dtype.type(factor)

    def _positions(self, span: slice, step: int) -> Array:
        length = span.stop - span.start
        positions = subset(entries(self._density, length), length, draw_seed(self._layout, span.start, step))
        return to_device(self._layout.device, positions)
