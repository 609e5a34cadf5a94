"""Vectors to be summed over ranks, and their sum by integer arithmetic."""

import numpy as np


def operands(ranks, length, dtype="float32"):
    """A row per rank, (ranks, length), of whole numbers small enough for exact sums, and the sum of the rows."""
    values = np.random.default_rng([ranks, length]).integers(-1000, 1001, (ranks, length))
    return values.astype(dtype), values.sum(axis=0).astype(dtype)


def awkward_lengths(ranks):
    """Nothing, fewer elements than ranks, as many, more, and many that no number of ranks divides."""
    return sorted({0, 1, ranks - 1, ranks, ranks + 1, 100_003})
