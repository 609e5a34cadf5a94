"""Running statistics of batch normalisation where some ranks train and others do not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Comm
    from hpcdl.training.session import Session


async def share_statistics(comm: Comm, session: Session, *, worked: bool) -> None:
    """Give the mean of the statistics of the ranks that ``worked`` to all ranks."""
    state = session.replica.state
    if state.size:
        if not worked:
            state[:] = 0
        workers = np.array([float(worked)])
        await comm.native("allreduce", state)
        await comm.native("allreduce", workers)
        state /= float(workers[0])
