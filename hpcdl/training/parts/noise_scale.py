"""Gradient noise scale: the batch beyond which larger batches hardly save steps, without a message of its own.

A rank knows the gradient of its own images before the sum and that of the whole batch after it. Their squared
norms give unbiased estimates of the squared true gradient and of the trace of the covariance of gradients of
images (McCandlish et al. 2018, arXiv 1812.06162, appendix A.1).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final

import numpy as np

from hpcdl.fabric.comm import Array, Comm

QUARTERS: Final = 4
"""Parts of the training with a number each: noise grows while the loss falls."""


class NoiseScale:
    """Estimates of one rank, summed over the steps of each quarter of the training."""

    def __init__(self, gradients: Array, global_batch: int, steps: int) -> None:
        self._gradients = gradients
        self._batch = global_batch
        self._steps = steps
        self._own = self._all = 0.0
        self._sums = np.zeros((QUARTERS, 2))
        """Squared gradient, and trace of the covariance."""

    def watched(
        self, reduce: Callable[[slice], Coroutine[Any, Any, None]]
    ) -> Callable[[slice], Coroutine[Any, Any, None]]:
        """Return ``reduce``, which also takes the norms of its part of the gradient, before and after."""

        async def reduced(span: slice) -> None:
            part = self._gradients[span]
            self._own += float(part @ part)
            await reduce(span)
            self._all += float(part @ part)

        return reduced

    def add(self, step: int, images: int) -> None:
        """End a step in which this rank had ``images`` of the batch; its gradient is divided by all of them."""
        whole, own = self._batch, images
        if 0 < own < whole:
            alone = self._own * (whole / own) ** 2
            square = (whole * self._all - own * alone) / (whole - own)
            trace = (alone - self._all) / (1 / own - 1 / whole)
            self._sums[QUARTERS * step // self._steps] += (square, trace)
        self._own = self._all = 0.0

    async def fields(self, comm: Comm) -> dict[str, float | None]:
        """Return the noise scale in images, trace by squared gradient, of each quarter; all ranks call, once.

        None where no step was taken, or where the estimate of the squared gradient is not positive.
        """
        sums = self._sums.copy()
        await comm.native("allreduce", sums.reshape(-1))
        return {
            f"noise_scale_q{quarter}": float(trace / square) if square > 0 and np.isfinite(trace) else None
            for quarter, (square, trace) in enumerate(sums, 1)
        }
