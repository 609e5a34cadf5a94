"""Drift of replicas: how far they are from their average just before it, without a message of its own."""

from __future__ import annotations

import math

import numpy as np

from hpcdl.fabric.comm import Array, Comm


class Drift:
    """Squared norms of one rank's parameters before each average, and of the average.

    The mean over replicas of |x_i - mean|^2 is that of |x_i|^2 less |mean|^2, by weights that add up to 1.
    """

    def __init__(self, replicas: int) -> None:
        self._sums = np.zeros(2)
        self._replicas = replicas

    def before(self, parameters: Array, weight: float) -> None:
        """Note the parameters of a replica that has ``weight`` in the next average."""
        self._sums[0] += weight * _squared(parameters)

    def after(self, average: Array) -> None:
        """Note the average."""
        self._sums[1] += _squared(average) / self._replicas

    async def fields(self, comm: Comm) -> dict[str, float | None]:
        """Return the root mean square drift over all averages by their norm; all ranks call, once."""
        sums = self._sums.copy()
        await comm.native("allreduce", sums)
        own, mean = map(float, sums)
        return {"replica_drift": math.sqrt(max(0.0, own / mean - 1)) if mean > 0 else None}


def _squared(vector: Array) -> float:
    """Return the squared norm in float64: differences of float32 sums would be rounding."""
    return float(np.einsum("i,i->", vector, vector, dtype=np.float64))
