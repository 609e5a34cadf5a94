from typing import Final

from hpcdl.aggregation.parts.patterns import Place, send_down, sum_up
from hpcdl.aggregation.parts.traits import Aggregation
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
    await sum_up(comm, [buffer], _place(comm))


async def broadcast(comm: Comm, buffer: Array) -> None:
    """Send rank 0's ``buffer`` to all.

    Messages, busiest rank: p - 1
    Bytes, busiest rank: n*(p - 1)
    Time: (p - 1)*(alpha + n*beta)
    """
    await send_down(comm, [buffer], _place(comm))


def _place(comm: Comm) -> Place:
    return Place([0], []) if comm.rank else Place([], [*range(1, comm.size)])
