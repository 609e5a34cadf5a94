from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Final

from hpcdl.aggregation.parts.messages import gather_in_rounds, gather_vectors
from hpcdl.aggregation.parts.traits import Aggregation
from hpcdl.fabric.comm import Array, Comm
from hpcdl.fabric.vectors import Parts, partition

TRAITS: Final = Aggregation(gathers=True)


async def circulant(comm: Comm, buffer: Array) -> None:
    """Reduce-scatter, then allgather, on a circulant graph (Traff 2024; Bruck et al. 1997's allgather). Any p.

    ::

        p = 7   rank 0 -> 4   [4 5 6]      Every rank sends to the ranks at the distances 4, 2 and 1: p halved
                rank 0 -> 2   [2 3]        and rounded up. It sends the partial sums of the chunks from this
                rank 0 -> 1   [1]          distance on. The allgather makes the same steps in reverse.

    The smallest possible numbers of rounds and bytes for any p, without folding. Each rank rotates its vector, so
    that its own chunk is first, and back: two local copies.

    Messages, busiest rank: 2*ceil(log2(p))
    Bytes, busiest rank: 2*n*(p - 1)/p
    Time: 2*ceil(log2(p))*alpha + 2*n*(p - 1)/p*beta + n*(p - 1)/p*gamma
    """
    if comm.size == 1:
        return
    chunks = partition(buffer, comm.size)
    with comm.scratch(len(buffer), buffer) as turned:
        edges = _edges(comm, chunks)
        await _turn(comm, chunks, turned)
        await _scatter(comm, turned, edges)
        await gather_vectors(comm, turned, edges, _rounds(comm.size))
        await _turn(comm, chunks, turned, back=True)


async def reduce_scatter(comm: Comm, chunks: Parts) -> None:
    """Each rank r ends with the sum of chunk r. Any p.

    Messages, busiest rank: ceil(log2(p))
    Bytes, busiest rank: n*(p - 1)/p
    Time: ceil(log2(p))*alpha + n*(p - 1)/p*(beta + gamma)
    """
    mine = chunks[comm.rank]
    with comm.scratch(len(chunks.whole), mine) as turned:
        edges = _edges(comm, chunks)
        await _turn(comm, chunks, turned)
        await _scatter(comm, turned, edges)
        await comm.get(mine, turned[: len(mine)], comm.rank)


async def allgather(comm: Comm, chunks: Parts) -> None:
    """All ranks get each rank r's chunk r. Any p.

    Messages, busiest rank: ceil(log2(p))
    Bytes, busiest rank: n*(p - 1)/p
    Time: ceil(log2(p))*alpha + n*(p - 1)/p*beta
    """
    mine = chunks[comm.rank]
    with comm.scratch(len(chunks.whole), mine) as turned:
        await comm.get(turned[: len(mine)], mine, comm.rank)
        await gather_vectors(comm, turned, _edges(comm, chunks), _rounds(comm.size))
        await _turn(comm, chunks, turned, back=True)


async def gather(comm: Comm, table: Array, length: int) -> list[Array]:
    """The allgather's steps, with messages of varying lengths: see :mod:`hpcdl.aggregation.parts.messages`. Any p.

    Messages, busiest rank: ceil(log2(p))
    Bytes, busiest rank: n*(p - 1)
    """
    return await gather_in_rounds(comm, table, length, _rounds(comm.size))


def _edges(comm: Comm, chunks: Sequence[Array]) -> list[int]:
    """Return the bounds of the chunks in a vector in which this rank's own chunk is first."""
    return list(accumulate((len(chunks[(comm.rank + i) % comm.size]) for i in range(comm.size)), initial=0))


async def _turn(comm: Comm, chunks: Parts, turned: Array, *, back: bool = False) -> None:
    """Copy the vector to ``turned``, which begins with this rank's chunk, or ``back``."""
    begin, whole = chunks.begins[comm.rank], chunks.whole
    end = len(turned) - begin
    for into, source in ((turned[:end], whole[begin:]), (turned[end:], whole[:begin])):
        await comm.get(*((source, into) if back else (into, source)), comm.rank)


def _halves(size: int) -> list[tuple[int, int]]:
    """Return ``size``, halved and rounded up, in pairs; for 7: (7, 4), (4, 2), (2, 1)."""
    sizes = [size]
    while sizes[-1] > 1:
        sizes.append((sizes[-1] + 1) // 2)
    return list(pairwise(sizes))


def _rounds(size: int) -> list[tuple[int, int]]:
    """Return the rounds (distance, chunks) of the allgather: those of the reduce-scatter in reverse."""
    return [(skip, end - skip) for end, skip in reversed(_halves(size))]


async def _scatter(comm: Comm, turned: Array, edges: Sequence[int]) -> None:
    with comm.scratch(edges[comm.size // 2], turned) as inbox:
        for end, skip in _halves(comm.size):
            arriving = inbox[: edges[end - skip]]
            to, source = (comm.rank + skip) % comm.size, (comm.rank - skip) % comm.size
            await comm.exchange(turned[edges[skip] : edges[end]], to, arriving, source)
            await comm.add(turned[: len(arriving)], arriving)
