"""Vectors to be summed over ranks, and their sum by integer arithmetic."""

from functools import lru_cache

import numpy as np


@lru_cache(maxsize=8)
def _drawn(ranks, length):
    """Return cached random numbers and their sum; many tests on every rank use the same ones."""
    values = np.random.default_rng([ranks, length]).integers(-1000, 1001, (ranks, length))
    return values.astype(np.int16), values.sum(axis=0)


def operands(ranks, length, dtype="float32"):
    """Return whole numbers (ranks, length), small enough for exact sums, and the sum of the rows."""
    values, total = _drawn(ranks, length)
    return values.astype(dtype), total.astype(dtype)


def awkward_lengths(ranks):
    """Return 0, lengths around the number of ranks, and a long one that no number of ranks divides."""
    return sorted({0, 1, ranks - 1, ranks, ranks + 1, 100_003})


def outcome(collective, rows):
    """Return the ranks' vectors after a collective, NaN if undefined; computed by index arithmetic."""
    ranks, length = rows.shape
    owner = np.repeat(range(ranks), [length // ranks + (rank < length % ranks) for rank in range(ranks)])
    after = np.full(rows.shape, np.nan)
    if collective == "allreduce":
        after[:] = rows.sum(axis=0)
    elif collective == "reduce":
        after[0] = rows.sum(axis=0)
    elif collective == "broadcast":
        after[:] = rows[0]
    elif collective == "reduce_scatter":
        after[owner, np.arange(length)] = rows.sum(axis=0)
    elif collective == "allgather":
        after[:] = rows[owner, np.arange(length)]
    else:
        after.reshape(ranks, ranks, -1)[:] = rows.reshape(ranks, ranks, -1).swapaxes(0, 1)
    return after


def as_wanted(collective, found, rows, rank=slice(None)):
    """Return whether the vectors of one ``rank`` or of all are the collective's result for ``rows``."""
    wanted = outcome(collective, rows)[rank]
    return bool(((found == wanted) | np.isnan(wanted)).all())
