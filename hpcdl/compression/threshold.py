"""Strom's threshold: entries beyond +-tau send exactly +-tau."""

from typing import Final

import numpy as np

from hpcdl.compression.parts import selection
from hpcdl.compression.parts.protocol import Compression, Layout, Sparse
from hpcdl.fabric.comm import Array

TRAITS: Final = Compression(on_device=True, title="Strom 2015")


class Threshold:
    """Send tau for each entry above tau and -tau for each below -tau; subtract it there (Strom 2015, section 3).

    ``tau`` is fixed, times ``decay`` after each step. Without ``tau`` each step takes the magnitude that the share
    ``density`` of a sample reaches. If fewer entries are not zero, tau is the mean of their magnitudes.
    """

    signs = True

    def __init__(
        self, layout: Layout, *, tau: float | None = None, density: float = 0.001, decay: float = 1.0
    ) -> None:
        selection.check_density(density)
        if tau is not None and not np.inf > np.dtype(layout.dtype).type(tau) > 0:
            raise ValueError(f"tau must be above 0 and finite in {layout.dtype}, not {tau}")
        if not 0 < decay <= 1:
            raise ValueError(f"decay must be above 0 and at most 1, not {decay}")
        if tau is None and decay < 1:
            raise ValueError("decay needs a fixed tau")
        self.state: dict[str, Array] = {}
        self._search = selection.Search(layout)
        self._tau = tau
        self._density = density
        self._decay = decay

    def most(self, span: slice) -> int:
        return int(span.stop - span.start)

    def expected(self, span: slice) -> int | None:
        return selection.entries(self._density, span.stop - span.start) if self._tau is None else None

    def select(self, span: slice, vector: Array, step: int) -> Sparse:
        if not len(vector):
            return Sparse(np.empty(0, np.int32), np.empty(0, vector.dtype))
        magnitude = self._magnitude(span, vector, step)
        likely = selection.entries(2 * self._density, len(vector))
        positions = self._search.largest(vector, span.start, magnitude + magnitude.dtype.type(1), likely)
        taken = self._search.kernels.take(vector, positions)
        values = np.copysign(vector.dtype.type(selection.from_bits(magnitude, vector.dtype)), taken)
        self._search.kernels.add(positions, -values, vector)
        return Sparse(positions, values)

    def _magnitude(self, span: slice, vector: Array, step: int) -> selection.Magnitude:
        """Return the bits of tau, which is above zero and finite."""
        if self._tau is not None:
            fixed = selection.bits(self._tau * self._decay**step, vector.dtype)
            return max(fixed, fixed.dtype.type(1))
        sampled = self._search.sample(vector, span.start, step, self._density)
        threshold = selection.quantile(sampled, self._density)
        if threshold == 0:
            positions = self._search.largest(vector, span.start, threshold.dtype.type(1), len(vector))
            taken = self._search.kernels.take(vector, positions) if len(positions) else np.zeros(1)
            threshold = selection.bits(np.abs(taken).mean(dtype=np.float64), vector.dtype)
        least = threshold.dtype.type(1)
        return min(max(least, threshold - min(threshold, least)), selection.bits(np.inf, vector.dtype) - least)
