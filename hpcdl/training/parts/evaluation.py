"""Evaluation of a network that is divided among the ranks of model groups."""

from __future__ import annotations

import math
from functools import partial
from operator import itruediv
from typing import TYPE_CHECKING

import numpy as np

from hpcdl.training.parts.group_batch import read, shares
from hpcdl.training.parts.segments import segments

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hpcdl.fabric.comm import Comm
    from hpcdl.nn.split.division import Division
    from hpcdl.training.parts.mesh import Place
    from hpcdl.training.parts.session import Session


async def tested_in_groups(session: Session, place: Place, division: Division, comm: Comm) -> NDArray[np.float64]:
    """Return the sum of losses and the number of correct answers over this rank's share of the test set.

    A model group tests its part of the test set together, in batches no larger than in training.
    """
    replica, test, model = session.replica, session.dataset.test, place.model
    groups = place.data.size
    first, end = (one * len(test) // groups for one in (place.group, place.group + 1))
    length = math.ceil(session.global_batch / groups)
    sums = np.zeros(2)
    for begin in range(first, end, length):
        indices = np.arange(begin, min(begin + length, end))
        images = shares(len(indices), model.size)
        takes = division.parts[0].takes
        make = partial(read, test, indices, takes, model.rank, model.size, replica.dtype)
        x, labels = await comm.compute("evaluation", make)
        x, labels = replica.backend.asarray(x), replica.backend.asarray(labels)
        for boundary, stage in enumerate(replica.stages):
            x = await session.flow.forward(boundary, x, images)
            x = await comm.compute("evaluation", partial(stage.forward, x, train=False))
        x = await session.flow.forward(len(replica.stages), x, images)
        work = partial(replica.loss, x, labels, 1.0, train=False)
        loss, correct, _ = await comm.compute("evaluation", work)
        sums += (loss, correct)
    replica.release_predictions()
    return sums


async def average_statistics(session: Session, place: Place, comm: Comm) -> None:
    """Average the running statistics over the ranks that have the same ones."""
    state = session.replica.state
    parts = [(stage.state, stage.divided) for stage in session.replica.stages]
    for piece, divided in segments(parts, slice(0, state.size)):
        ranks = place.group_of(comm, divided=divided)
        await ranks.native("allreduce", state[piece])
        await comm.compute("evaluation", partial(itruediv, state[piece], ranks.size))
