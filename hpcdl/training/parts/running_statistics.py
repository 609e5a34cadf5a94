"""Running statistics of batch normalisation if only some ranks train."""

from __future__ import annotations

from functools import partial
from operator import itruediv
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Comm
    from hpcdl.training.parts.session import Session


async def share_statistics(comm: Comm, session: Session, *, worked: bool) -> None:
    """Set the running statistics of all ranks to the mean over the ranks that ``worked``."""
    state = session.replica.state
    if state.size:
        if not worked:
            state[:] = 0
        workers = np.array([float(worked)])
        await comm.native("allreduce", state)
        await comm.native("allreduce", workers)
        await comm.compute("evaluation", partial(itruediv, state, float(workers[0])))
