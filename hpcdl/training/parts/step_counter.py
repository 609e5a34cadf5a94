"""Counter of a training's steps, which assigns them one by one to ranks that keep no common step."""

from collections.abc import AsyncIterator
from typing import Final

import numpy as np

from hpcdl.fabric.comm import Comm

_REQUEST: Final = 254
_ANSWER: Final = 255
"""Tags, in the tag space that all main programs share."""
COUNTER_RANK: Final = 0
"""Rank that runs :func:`assign_steps`."""


async def assign_steps(comm: Comm, steps: int, workers: int, *, ramp: int = 0) -> None:
    """Answer requests with the step numbers 0 to ``steps`` - 1, then send -1 once to each of ``workers`` ranks.

    In the first ``ramp`` steps the number of ranks that get steps rises evenly from 1, rank 0, to ``workers``.
    Rank :data:`COUNTER_RANK` starts this program with shared tags.
    """
    nothing = np.empty(0, np.int64)
    waiting: list[int] = []
    for number in [*range(steps), *[-1] * workers]:
        admitted = workers if number < 0 or number >= ramp else 1 + number * (workers - 1) // ramp
        while not (ready := [rank for rank in waiting if rank < admitted or admitted == workers]):
            waiting.append((await comm.recv(nothing, tag=_REQUEST)).source)
        waiting.remove(ready[0])
        await comm.send(np.array([number]), ready[0], _ANSWER)


async def numbered_steps(comm: Comm) -> AsyncIterator[tuple[int, int]]:
    """Yield own count and number of this rank's steps, in rising order, until all steps are assigned.

    The next number is requested during each step. A rank makes every step that it is assigned.
    """
    own, following = 0, comm.start(_request(comm), shared_tags=True)
    while (number := await following) >= 0:
        following = comm.start(_request(comm), shared_tags=True)
        yield own, number
        own += 1


async def _request(comm: Comm) -> int:
    answer = np.zeros(1, np.int64)
    await comm.send(answer[:0], COUNTER_RANK, _REQUEST)
    await comm.recv(answer, COUNTER_RANK, _ANSWER)
    return int(answer[0])
