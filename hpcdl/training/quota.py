"""A training's steps, handed out one by one, so that ranks without a common step make a given number together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hpcdl.fabric.comm import Comm
    from hpcdl.training.session import Session

_ASK: Final = 254
_ANSWER: Final = 255
"""Tags, in the space that all main programs share."""

KEEPER: Final = 0
"""The rank that hands them out."""


async def hand_out(comm: Comm, steps: int, workers: int) -> None:
    """Number ``steps`` steps in the order in which ``workers`` ranks ask; tell each once that there are no more.

    A program that the keeper starts with shared tags.
    """
    nothing = np.empty(0, np.int64)
    for number in [*range(steps), *[-1] * workers]:
        asked = await comm.recv(nothing, tag=_ASK)
        await comm.send(np.array([number]), asked.source, _ANSWER)


async def numbered_steps(comm: Comm) -> AsyncIterator[int]:
    """Yield the numbers of the steps that fall to this rank, rising, until all are given to somebody.

    Each is asked for during the step before it, so that the answer is there when the step begins. A number that
    was given is a step that is made.
    """
    following = comm.start(_ask(comm), shared_tags=True)
    while (number := await following) >= 0:
        following = comm.start(_ask(comm), shared_tags=True)
        yield number


async def _ask(comm: Comm) -> int:
    answer = np.zeros(1, np.int64)
    await comm.send(answer[:0], KEEPER, _ASK)
    await comm.recv(answer, KEEPER, _ANSWER)
    return int(answer[0])


def evaluations_due(session: Session, after: int, until: int) -> list[int]:
    """After which of the steps above ``after``, up to ``until``, the test set is to be looked at."""
    return [steps for steps in range(after + 1, until + 1) if session.evaluation_due(steps)]
