from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array, Comm


async def none(comm: Comm, buffer: Array) -> None:
    """No exchange at all: independent replicas, the no-communication ceiling of every table. Any p.

    Messages, busiest rank: 0
    Bytes, busiest rank: 0
    Time: 0
    """
