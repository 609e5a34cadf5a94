"""Losses of auxiliary classifiers in inner stages, which belong to the loss of the network."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hpcdl.training.parts.neighbours import LOSS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.fabric.comm import Comm


async def stages_with_heads(pipe: Comm, own: bool) -> list[int]:
    """Return the stages that have auxiliary classifiers; every rank of the pipeline calls."""
    marks = np.zeros(pipe.size)
    marks[pipe.rank] = own
    await pipe.native("allreduce", marks)
    return [int(stage) for stage in np.flatnonzero(marks)]


async def total_loss(pipe: Comm, stages: Sequence[int], own: float) -> float:
    """Return on the last rank the sum of the losses of ``stages``, which it receives; elsewhere ``own``."""
    last = pipe.size - 1
    if pipe.rank == last:
        for stage in stages:
            if stage != last:
                theirs = np.empty(1)
                await pipe.recv(theirs, stage, LOSS)
                own += float(theirs[0])
    elif pipe.rank in stages:
        await pipe.send(np.array([own]), last, LOSS)
    return own
