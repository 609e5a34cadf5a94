"""Clusters of numbers: Lloyd's k-means in one dimension, on sorted numbers."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array

MOST_ROUNDS: Final = 100
"""Rounds after which k-means stops, if it has not settled."""


def clusters_of(values: Array, clusters: int) -> Array:
    """Return the centroids, rising, (clusters,), of one or more finite ``values``, (n,).

    The first centroids are at equal distances from the least to the largest value (Deep Compression: Han et al.
    2016, section 3.2). A cluster without values keeps its centroid. No more distinct values than clusters are the
    centroids themselves.
    """
    ordered = np.sort(values)
    ends = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))
    if len(ends) <= clusters:
        return np.pad(ordered[ends], (0, clusters - len(ends)), mode="edge")
    low, high = float(ordered[0]), float(ordered[-1])
    share = np.linspace(0, 1, clusters)
    centroids = low * (1 - share) + high * share
    before = np.array([-1])
    for _ in range(MOST_ROUNDS):
        edges = np.searchsorted(ordered, _middles(centroids), side="right")
        if np.array_equal(edges, before):
            break
        before = edges
        bounds = [0, *edges.tolist(), len(ordered)]
        for number, (start, stop) in enumerate(pairwise(bounds)):
            if stop > start:
                centroids[number] = ordered[start:stop].mean(dtype=np.float64)
    return np.sort(centroids.astype(values.dtype))


def nearest(values: Array, centroids: Array) -> Array:
    """Return the number of the centroid nearest to each value, uint32 (n,)."""
    return np.searchsorted(_middles(centroids.astype(np.float64)), values).astype(np.uint32)


def _middles(centroids: Array) -> Array:
    return centroids[:-1] / 2 + centroids[1:] / 2
