from functools import partial
from typing import Final

from hpcdl.aggregation.parts import entries as sparse
from hpcdl.aggregation.parts.traits import Aggregation
from hpcdl.compression.parts.protocol import Sparse
from hpcdl.fabric.comm import Comm

TRAITS: Final = Aggregation(sparse=True, memory="host", autotuned=False)


async def gtopk(comm: Comm, entries: Sparse, series: sparse.Series) -> sparse.Reduced:
    """Global top-k by a tree of pairs: each sum keeps its k largest entries (Shi et al. 2019, algorithm 2). Any p.

    ::

        0 <- 1    2 <- 3    4 <- 5    6 <- 7       A rank adds its pair's entries to its own, and keeps the k
        0 <------ 2         4 <------ 6            largest. Then a broadcast goes down the same tree.
        0 <---------------- 4

    k is the largest number of entries that a rank of the pair has. The result lacks an entry if a sum on its way
    dropped it. The paper gives such an entry back to its first rank, but only if the result has no entry at its
    position. Otherwise part of the gradient would be lost: here the rank that dropped it keeps it.

    n: bytes of a rank's entries.

    Messages, busiest rank: ceil(log2(p))
    Bytes, busiest rank: n*ceil(log2(p))
    Time, p a power of two: log2(p)*(2*alpha + 2*n*beta + 6*n*gamma) + n*gamma
    """
    kept, below = entries, 1
    dropped: list[Sparse] = []
    with comm.scratch(series.most * sparse.entry_bytes(entries), sparse.message(entries)) as inbox:
        while below < comm.size and not comm.rank & below:
            if comm.rank + below < comm.size:
                status = await comm.recv(inbox, comm.rank + below, tag=0)
                theirs = sparse.opened(inbox[: status.count], entries, comm.rank + below, series.size)
                add = partial(_largest_of_sum, kept, theirs)
                kept, others = await comm.apply("add", add, sparse.PASSES * sparse.nbytes(kept, theirs))
                dropped.append(others)
            below *= 2
        if comm.rank:
            await comm.send(sparse.message(kept), comm.rank - below)
            status = await comm.recv(inbox, comm.rank - below, tag=0)
            kept = sparse.opened(inbox[: status.count], entries, comm.rank - below, series.size)
    while below > 1:
        below //= 2
        if comm.rank + below < comm.size:
            await comm.send(sparse.message(kept), comm.rank + below)

    def rest() -> Sparse:
        """Return own entries without a place in the result, and parts of sums that this rank dropped."""
        return sparse.summed([sparse.absent(entries, kept), *(sparse.present(sums, kept) for sums in dropped)])

    return sparse.Reduced(kept, await comm.apply("rest", rest, sparse.nbytes(entries)))


def _largest_of_sum(mine: Sparse, theirs: Sparse) -> tuple[Sparse, Sparse]:
    return sparse.largest(sparse.summed([mine, theirs]), max(len(mine.values), len(theirs.values)))
