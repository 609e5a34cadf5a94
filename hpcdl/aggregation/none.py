from typing import Final

from hpcdl.aggregation.parts.traits import Aggregation
from hpcdl.fabric.comm import Array, Comm

TRAITS: Final = Aggregation(sums=False, autotuned=False)


async def none(comm: Comm, buffer: Array) -> None:
    """No exchange: independent replicas, the no-communication baseline of every table. Any p.

    Messages, busiest rank: 0
    Bytes, busiest rank: 0
    Time: 0
    """
