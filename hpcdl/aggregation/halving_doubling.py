from functools import partial

from hpcdl.aggregation.parts import patterns
from hpcdl.aggregation.parts.patterns import folded
from hpcdl.fabric.comm import Array, Comm
from hpcdl.fabric.vectors import Parts


async def halving_doubling(comm: Comm, buffer: Array, *, nearest_first: bool = False) -> None:
    """Recursive halving, then recursive doubling (Rabenseifner 2004). Any p.

    ::

        0 . . . . . . . 7     Partners at the distance p/2 exchange halves of the vector, then at p/4 quarters, ...
        [ half  ][ half  ]    Each rank ends with the sum of its p-th part. The doubling makes the same steps in
        [ q ][ q ]            reverse and gathers the parts.

    A ring's bandwidth with a tree's latency. With ``nearest_first``, as in MPICH and Open MPI, halves go to
    neighbours and the distances rise: p/2 last. Ranks beyond a power of two are folded: see parts/patterns.py.

    Messages, busiest rank: 2*floor(log2(p)) + (p & (p - 1) > 0)
    Bytes, busiest rank: 2*n*(2**floor(log2(p)) - 1)/2**floor(log2(p)) + n*(p & (p - 1) > 0)
    Time, p a power of two: 2*log2(p)*alpha + 2*n*(p - 1)/p*beta + n*(p - 1)/p*gamma
    """
    butterfly = patterns.nearest_first if nearest_first else patterns.farthest_first
    await folded(comm, buffer, partial(patterns.halved_and_doubled, butterfly))


async def reduce_scatter(comm: Comm, chunks: Parts) -> None:
    """Recursive halving: each rank r ends with the sum of chunk r. Any p.

    ::

        0 <- 1   2   3   4     A rank above the largest power of two is the guest of a neighbour, its host, which
        [0 1]   [2] [3] [4]    sums two chunks and sends one of the sums to its guest.

    Messages, busiest rank: floor(log2(p)) + (p & (p - 1) > 0)
    Time, p a power of two: log2(p)*alpha + n*(p - 1)/p*(beta + gamma)
    Bytes, p a power of two: n*(p - 1)/p
    """
    await patterns.reduce_scatter(patterns.farthest_first, comm, chunks)


async def allgather(comm: Comm, chunks: Parts) -> None:
    """Recursive doubling: all ranks get each rank r's chunk r. Any p.

    A guest sends its chunk to its host and receives the whole vector; see :func:`reduce_scatter`.

    Messages, busiest rank: floor(log2(p)) + (p & (p - 1) > 0)
    Time, p a power of two: log2(p)*alpha + n*(p - 1)/p*beta
    Bytes, p a power of two: n*(p - 1)/p
    """
    await patterns.allgather(patterns.farthest_first, comm, chunks)
