"""Replicas that span ranks: a model group is one worker, and its ranks keep the same parts of the parameters.

DistBelief, sections 4 and 5.1: a rank of a replica exchanges parameters and gradients only with the ranks that
hold the same parts, its data group. The first rank of a model group decides for the whole replica.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from hpcdl.fabric.comm import Comm
from hpcdl.training.parts.session import Session

_DECISION: Final = 200
"""Tag of the numbers that the first rank of a model group sends."""
_CONTRIBUTION: Final = 201
"""Tag of the numbers that it receives."""


def holders(comm: Comm, session: Session) -> Comm:
    """Return the ranks that hold this rank's parameters, one of each replica: its data group, or all ranks."""
    return comm if session.group is None else session.group.place.data


def place_among(comm: Comm, session: Session) -> tuple[int, int]:
    """Return the number of this rank's replica, and the number of replicas."""
    among = holders(comm, session)
    return among.rank, among.size


def members(comm: Comm, session: Session) -> tuple[tuple[int, ...], ...]:
    """Return the ranks of each replica, in the order of their parts of the layers."""
    return tuple((rank,) for rank in range(comm.size)) if session.group is None else session.group.place.ranks


def leads(session: Session) -> bool:
    """Return whether this rank decides for its replica."""
    return session.group is None or session.group.place.model.rank == 0


async def follow(session: Session, numbers: NDArray[np.int64] | NDArray[np.float64]) -> None:
    """Replace ``numbers`` by those of the rank that decides for the replica."""
    if session.group is None:
        return
    ranks = session.group.place.model
    if ranks.rank:
        await ranks.recv(numbers, 0, _DECISION)
    else:
        for rank in range(1, ranks.size):
            await ranks.send(numbers, rank, _DECISION)


async def contribute(session: Session, numbers: NDArray[np.float64]) -> None:
    """Add the ``numbers`` of the replica's ranks on the rank that decides, in the order of ranks."""
    if session.group is None:
        return
    ranks = session.group.place.model
    if ranks.rank:
        await ranks.send(numbers, 0, _CONTRIBUTION)
    else:
        others = numbers.copy()
        for rank in range(1, ranks.size):
            await ranks.recv(others, rank, _CONTRIBUTION)
            numbers += others
