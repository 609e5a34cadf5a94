from hpcdl.aggregation.parts.patterns import Place, send_down, sum_up
from hpcdl.fabric.comm import Array, Comm


async def binomial(comm: Comm, buffer: Array) -> None:
    """Binomial reduce to rank 0, then binomial broadcast (Thakur, Rabenseifner & Gropp 2005). Any p.

    ::

        0 <- 1    2 <- 3    4 <- 5    6 <- 7       A level costs one message, half of a binary tree with one port
        0 <------ 2         4 <------ 6            per node, because each port is used at most once per level.
        0 <---------------- 4

    FireCaffe (Iandola et al. 2016, section 5.2) states 2 log2(p) n/BW for its reduction tree: the cost of this
    scheme for both directions, without latency and arithmetic. ``tree`` is a binary tree with one port per node.

    Messages, busiest rank: ceil(log2(p))
    Messages, all ranks: 2*(p - 1)
    Bytes, busiest rank: n*ceil(log2(p))
    Bytes, all ranks: 2*n*(p - 1)
    Time, p a power of two: 2*log2(p)*(alpha + n*beta) + log2(p)*n*gamma
    """
    await reduce(comm, buffer)
    await broadcast(comm, buffer)


async def reduce(comm: Comm, buffer: Array) -> None:
    """Sum at rank 0; on other ranks ``buffer`` ends with a partial sum.

    Messages, busiest rank: 1 if p > 1 else 0
    Messages, all ranks: p - 1
    Bytes, all ranks: n*(p - 1)
    Time, p a power of two: log2(p)*(alpha + n*beta + n*gamma)
    """
    await sum_up(comm, [buffer], _place(comm))


async def broadcast(comm: Comm, buffer: Array) -> None:
    """Send rank 0's ``buffer`` to all.

    Messages, busiest rank: ceil(log2(p))
    Bytes, busiest rank: n*ceil(log2(p))
    Time, p a power of two: log2(p)*(alpha + n*beta)
    """
    place = _place(comm)
    await send_down(comm, [buffer], place._replace(children=place.children[::-1]))


def _place(comm: Comm) -> Place:
    """Return the place of a rank, whose lowest bit is the distance to its parent; the nearest child is first."""
    rank, lowest = comm.rank, comm.rank & -comm.rank
    distances = [1 << bit for bit in range((lowest or comm.size).bit_length())]
    children = [rank + d for d in distances if (d < lowest or not rank) and rank + d < comm.size]
    return Place([rank - lowest] if rank else [], children)
