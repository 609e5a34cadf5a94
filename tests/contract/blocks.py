"""Matrices of counts, and blocks of known content by index arithmetic."""

import numpy as np

from hpcdl.aggregation.parts.traits import ALLTOALLV, offered, schemes
from hpcdl.cases.parts.operations import blocks

EVERY = [(name, {}) for name in schemes(ALLTOALLV)]
EVERY += [("hierarchical", {"ranks_per_node": size}) for size in (1, 3, 4, 100)]
"""Schemes with their settings."""


def matrices(ranks):
    """Return counts: odd and zero ones, one hot rank, one rank that sends all, and none at all."""
    draw, hot, alone = np.random.default_rng(ranks), np.ones((ranks, ranks), int), np.zeros((ranks, ranks), int)
    hot[:, -1] = 301
    alone[ranks // 2] = 17  # the period of the test vectors of cases
    return [draw.integers(0, 12, hot.shape) * draw.integers(0, 2, hot.shape), hot, alone, 0 * hot]


def vectors_of(counts, rank):
    """Return what a rank sends, each element its number among those of all ranks, and what it receives."""
    every = np.arange(counts.sum()).astype(np.float32)
    of = np.array_split(every, np.cumsum(counts)[:-1])
    return tuple(
        np.concatenate(part)
        for part in (of[rank * len(counts) : (rank + 1) * len(counts)], of[rank :: len(counts)])
    )


async def exchanged(comm, name, counts, settings):
    """Return True if a rank receives by a scheme what it should, and what it sent is unchanged."""
    (sent, wanted), (given, _) = vectors_of(counts, comm.rank), vectors_of(counts, comm.rank)
    result = np.full_like(wanted, np.nan)
    await offered(ALLTOALLV, name)(comm, blocks(counts, comm.rank, sent, result), **settings)
    return np.array_equal(result, wanted) and np.array_equal(sent, given)
