"""Compressors that send some entries: top-k, Strom's threshold, Deep Gradient Compression, random-k."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from hpcdl.compression.parts import selection
from hpcdl.compression.parts.protocol import Compression, Layout, Sparse, check_finite, to_device
from hpcdl.compression.parts.selection import Search, check_density, draw_seed, entries, subset
from hpcdl.fabric.comm import Array


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

    expected = most

    def select(self, span: slice, vector: Array, step: int) -> Sparse:
        positions = self._search.top(vector, span.start, step, self.most(span))
        values = self._search.kernels.take(vector, positions)
        self._search.kernels.put(positions, np.zeros_like(values), vector)
        return Sparse(positions, values)


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
        values = np.copysign(np.array([magnitude]).view(vector.dtype), taken)
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


OFFERS: Final = {"top_k": TopK, "threshold": Threshold, "dgc": DGC, "random_k": RandomK}
TRAITS: Final = {
    "top_k": Compression(both_ways=True, on_device=True, title="Aji and Heafield 2017"),
    "threshold": Compression(on_device=True, title="Strom 2015"),
    "dgc": Compression(
        error_feedback=False, own_momentum=True, own_residual="accumulated", on_device=True, title="Lin 2018"
    ),
    "random_k": Compression(on_device=True, title="Stich 2018"),
}
