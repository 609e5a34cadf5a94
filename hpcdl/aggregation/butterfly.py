from functools import partial

from hpcdl.aggregation.parts.patterns import doubled, folded, nearest_first
from hpcdl.fabric.comm import Array, Comm


async def butterfly(comm: Comm, buffer: Array) -> None:
    r"""Recursive doubling (butterfly): exchange whole vectors with partners at the distances 1, 2, 4, ... Any p.

    ::

        1   2   3   4        Half the steps of a tree, because every rank sends in every step. Best for short
         \ /     \ /         vectors (Thakur, Rabenseifner & Gropp 2005).
        3   3   7   7
          \__ X __/          Ranks beyond a power of two are folded: see parts/patterns.py.
        10 10  10  10

    Messages, busiest rank: floor(log2(p)) + (p & (p - 1) > 0)
    Bytes, busiest rank: n*(floor(log2(p)) + (p & (p - 1) > 0))
    Time, p a power of two: log2(p)*(alpha + n*beta + n*gamma)
    Time, p not a power of two: (floor(log2(p)) + 2)*(alpha + n*beta) + (floor(log2(p)) + 1)*n*gamma
    """
    await folded(comm, buffer, partial(doubled, nearest_first))
