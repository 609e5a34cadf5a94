"""Deep Gradient Compression: top-k with momentum correction."""

from typing import Final

import numpy as np

from hpcdl.compression.parts import selection
from hpcdl.compression.parts.protocol import Compression, Layout, Sparse, to_device
from hpcdl.fabric.comm import Array

TRAITS: Final = Compression(
    error_feedback=False, own_momentum=True, own_residual="accumulated", on_device=True, title="Lin 2018"
)

STAGES: Final = 4
"""Stages of the warm-up: densities 1/4, 1/16, 1/64, 1/256, then that of the setting (Lin 2018, section 3.3)."""


class DGC:
    """u = momentum u + g, v = v + u; send the largest entries of v, set u and v to zero there (Lin 2018).

    The optimizer must have no momentum of its own. v holds what is not sent: error feedback is built in. The
    threshold is that of a 1 % sample; of more than the share ``density`` the largest are sent. ``clipping`` times
    ranks^-1/2 is the largest norm of a piece of the gradient. In the first ``sparsity_warmup_steps`` the
    sparsity is 75, 93.75, 98.4 and 99.6 %, each for a quarter of these steps.
    """

    signs = False

    def __init__(
        self,
        layout: Layout,
        *,
        density: float = 0.001,
        momentum: float = 0.9,
        clipping: float | None = None,
        sparsity_warmup_steps: int = 0,
    ) -> None:
        selection.check_density(density)
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum must be at least 0 and below 1, not {momentum}")
        if clipping is not None and clipping <= 0:
            raise ValueError(f"clipping must be above 0, not {clipping}")
        if sparsity_warmup_steps < 0:
            raise ValueError(f"sparsity_warmup_steps must be at least 0, not {sparsity_warmup_steps}")
        self._search = selection.Search(layout)
        self.state: dict[str, Array] = {
            name: to_device(layout.device, np.zeros(layout.size, layout.dtype))
            for name in ("velocity", "accumulated")
        }
        self._layout = layout
        self._density = density
        self._momentum = momentum
        self._clipping = clipping
        self._warmup = sparsity_warmup_steps

    def density(self, step: int) -> float:
        """Return the share of entries that a step sends."""
        if step >= self._warmup:
            return self._density
        return float(max(self._density, 0.25 ** (1 + step * STAGES // self._warmup)))

    def most(self, span: slice) -> int:
        return selection.entries(self.density(0), span.stop - span.start)

    def expected(self, span: slice) -> int | None:
        return selection.entries(self._density, span.stop - span.start)

    def select(self, span: slice, vector: Array, step: int) -> Sparse:
        if not len(vector):
            return Sparse(np.empty(0, np.int32), np.empty(0, vector.dtype))
        kernels, begin = self._search.kernels, span.start
        if not kernels.are_finite(vector):
            selection.refuse(vector, begin)
        velocity, accumulated = self.state["velocity"][span], self.state["accumulated"][span]
        dtype = vector.dtype.type
        kernels.correct(vector, velocity, accumulated, dtype(self._momentum), dtype(self._clip(vector)))
        density = self.density(step)
        sampled = self._search.sample(vector, begin, step, density)
        threshold = max(selection.quantile(sampled, density), sampled.dtype.type(1))
        k = selection.entries(density, len(vector))
        # A sample's threshold may let too many pass; the largest of them are sent.
        reaching = self._search.largest(vector, begin, threshold, 2 * k)
        positions = self._search.trimmed(vector, reaching, k)
        values = kernels.take(vector, positions)
        for masked in (vector, velocity, accumulated):
            kernels.put(positions, np.zeros_like(values), masked)
        return Sparse(positions, values)

    def _clip(self, vector: Array) -> float:
        """Return the factor that clips ``vector``; 1 if its norm is small enough."""
        if self._clipping is None:
            return 1.0
        norm = float(np.linalg.norm(vector))
        return min(1.0, self._clipping * self._layout.ranks**-0.5 / norm) if norm else 1.0
