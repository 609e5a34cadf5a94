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

    from hpcdl.data.parts.dataset import Split
    from hpcdl.fabric.comm import Comm
    from hpcdl.nn.replica import Replica
    from hpcdl.nn.split.layout import Layout
    from hpcdl.training.parts.flow import Flow
    from hpcdl.training.parts.mesh import Place


async def tested_in_groups(
    comm: Comm, replica: Replica, flow: Flow, takes: Layout, test: Split, global_batch: int, place: Place
) -> NDArray[np.float64]:
    """Return the sum of losses and the number of correct answers over this rank's share of the test set.

    A model group tests its part of the test set together, in batches no larger than in training. ``takes`` is the
    layout of the images.
    """
    model, groups = place.model, place.data.size
    first, end = (one * len(test) // groups for one in (place.group, place.group + 1))
    length = math.ceil(global_batch / groups)
    sums = np.zeros(2)
    for begin in range(first, end, length):
        indices = np.arange(begin, min(begin + length, end))
        images = shares(len(indices), model.size)
        make = partial(read, test, indices, takes, model.rank, model.size, replica.dtype)
        x, labels = await comm.compute("evaluation", make)
        x, labels = replica.backend.asarray(x), replica.backend.asarray(labels)
        for boundary, stage in enumerate(replica.stages):
            x = await flow.forward(boundary, x, images)
            x = await comm.compute("evaluation", partial(stage.forward, x, train=False))
        x = await flow.forward(len(replica.stages), x, images)
        work = partial(replica.loss, x, labels, 1.0, train=False)
        loss, correct, _ = await comm.compute("evaluation", work)
        sums += (loss, correct)
    replica.release_predictions()
    return sums


async def average_statistics(comm: Comm, replica: Replica, place: Place) -> None:
    """Average the running statistics over the ranks that have the same ones."""
    state = replica.state
    parts = [(stage.state, stage.divided) for stage in replica.stages]
    for piece, divided in segments(parts, slice(0, state.size)):
        ranks = place.group_of(comm, divided=divided)
        await ranks.native("allreduce", state[piece])
        await comm.compute("evaluation", partial(itruediv, state[piece], ranks.size))
