"""Student's t distribution, of many values at once and without scipy."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(200)


def beyond(t: Vector, freedom: Vector) -> Vector:
    """Return the probability that Student's t is larger than ``t`` >= 0; NaN where ``freedom`` is.

    The integral of the density over the angle atan(t / sqrt(freedom)) (Abramowitz & Stegun 26.7.1), from that
    angle to pi/2, so that small probabilities are exact.
    """
    freedom = np.asarray(freedom, np.float64)
    low = np.arctan(t / np.sqrt(freedom))
    half = (np.pi / 2 - low) / 2
    angle = low[..., None] + half[..., None] * (_NODES + 1)
    gammas = [math.lgamma((n + 1) / 2) - math.lgamma(n / 2) if n > 0 else math.nan for n in freedom.ravel()]
    scale = np.exp(np.array(gammas).reshape(freedom.shape)) / math.sqrt(math.pi)
    with np.errstate(under="ignore"):
        density = np.clip(np.cos(angle), 0, 1) ** (freedom[..., None] - 1)
    return np.asarray(np.clip(scale * half * (density @ _WEIGHTS), 0, 0.5), np.float64)


def upper(probability: float, freedom: npt.ArrayLike) -> Vector:
    """Return t that Student's t exceeds with ``probability`` < 0.5, by bisection over the angle."""
    freedom = np.asarray(freedom, np.float64)
    low, high = np.zeros(freedom.shape), np.full(freedom.shape, np.pi / 2)
    for _ in range(60):
        middle = (low + high) / 2
        is_beyond = beyond(np.sqrt(freedom) * np.tan(middle), freedom) > probability
        low, high = np.where(is_beyond, middle, low), np.where(is_beyond, high, middle)
    return np.asarray(np.where(np.isnan(freedom), np.nan, np.sqrt(freedom) * np.tan(high)), np.float64)
