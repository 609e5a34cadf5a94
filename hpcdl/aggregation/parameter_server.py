from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hpcdl.aggregation.parts.traits import Aggregation

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array, Comm

TRAITS: Final = Aggregation(autotuned=False, servers=lambda _ranks, _settings: 1)


async def parameter_server(comm: Comm, buffer: Array) -> None:
    """Rank 0, the server, sums all vectors and sends the sum back (FireCaffe, section 5.1). Any p.

    The server is a worker too. It adds in rank order, so that all runs give the same bits. All messages pass its
    one port.

    Messages, busiest rank: p - 1
    Messages, all ranks: 2*(p - 1)
    Bytes, busiest rank: n*(p - 1)
    Bytes, all ranks: 2*n*(p - 1)
    Time: 2*(p - 1)*(alpha + n*beta) + (p - 1)*n*gamma
    """
    await reduce(comm, buffer)
    await broadcast(comm, buffer)


async def reduce(comm: Comm, buffer: Array) -> None:
    """Sum at rank 0.

    Messages, all ranks: p - 1
    Bytes, all ranks: n*(p - 1)
    Time: (p - 1)*(alpha + n*beta + n*gamma)
    """
    await (_add(comm, buffer) if comm.rank == 0 else comm.send(buffer, 0))


async def broadcast(comm: Comm, buffer: Array) -> None:
    """Send rank 0's ``buffer`` to all.

    Messages, busiest rank: p - 1
    Bytes, busiest rank: n*(p - 1)
    Time: (p - 1)*(alpha + n*beta)
    """
    await (_send(comm, buffer) if comm.rank == 0 else _receive(comm, buffer))


async def _add(comm: Comm, buffer: Array) -> None:
    with comm.scratch(len(buffer), buffer) as inbox:
        for worker in range(1, comm.size):
            await comm.recv(inbox, worker, tag=0)
            await comm.add(buffer, inbox)


async def _send(comm: Comm, buffer: Array) -> None:
    for worker in range(1, comm.size):
        await comm.send(buffer, worker)


async def _receive(comm: Comm, buffer: Array) -> None:
    await comm.recv(buffer, 0, tag=0)
