from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
    size, rank = comm.size, comm.rank
    distance = 1
    with comm.scratch(len(buffer), buffer) as inbox:
        while distance < size and not rank & distance:
            if rank + distance < size:
                await comm.recv(inbox, rank + distance, tag=0)
                await comm.add(buffer, inbox)
            distance *= 2
    if rank:
        await comm.send(buffer, rank - distance)


async def broadcast(comm: Comm, buffer: Array) -> None:
    """Send rank 0's ``buffer`` to all.

    Messages, busiest rank: ceil(log2(p))
    Bytes, busiest rank: n*ceil(log2(p))
    Time, p a power of two: log2(p)*(alpha + n*beta)
    """
    size, rank = comm.size, comm.rank
    distance = rank & -rank or 1 << (size - 1).bit_length()
    if rank:
        await comm.recv(buffer, rank - distance, tag=0)
    while distance > 1:
        distance //= 2
        if rank + distance < size:
            await comm.send(buffer, rank + distance)
