from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from hpcdl.optim.position import position
from hpcdl.training.backpropagation import gradient

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcdl.fabric.comm import Comm
    from hpcdl.training.session import Session


async def synchronous_elastic_averaging(
    comm: Comm, session: Session, *, period: int = 1, beta: float = 0.9
) -> None:
    """Synchronous EASGD: all workers and their centre draw each other at once (Zhang et al. 2015, section 2).

    Every ``period`` (tau) steps each of p workers x_i and the centre c move by equal amounts, all from the old
    values:

        x_i  <-  x_i - a (x_i - c)        c  <-  c + a sum of (x_i - c)

    with a = ``beta`` / p, so that c keeps 1 - beta of itself and takes beta of the workers' mean; and x_i takes
    its gradient step, also from the old x_i: equations (2) and (3). With Nesterov, equation (5), x_i is without
    the look-ahead at which the gradient is taken. The gradient is the mean over the worker's own share of the
    batch.

    Every rank keeps the centre, and moves it by the sum over ranks, which the session's aggregation makes beside
    the gradient. The sum of all x_i and c changes by gradient steps only. The centre is what is tested.

    Messages: one sum of a vector as long as the parameters in ``period`` steps. Memory: three vectors, ``centre``,
    ``spring`` and ``springs``.
    """
    x, gradients = session.replica.parameters, session.replica.gradients
    centre, spring, springs = (session.vector(name) for name in ("centre", "spring", "springs"))
    centre[:] = x
    # without an aggregation (the no-communication ceiling) a rank is its centre's only worker
    moving_rate = beta / (1 if session.independent else comm.size)
    for step in range(session.steps):
        rate = session.learning_rate(step)
        with session.journal.step(session.epoch(step), rate) as outcome:
            summing = None
            if step % period == 0:
                position(session.optimizer, x, spring)
                spring -= centre
                spring *= moving_rate
                springs[:] = spring
                summing = comm.start(session.aggregate(comm, springs))
            await gradient(comm, session, partial(session.input, step, comm.rank, comm.size), outcome)
            await comm.compute("update", partial(session.optimizer.update, x, gradients, rate))
            if summing is not None:
                await summing
                x -= spring
                await comm.add(centre, springs)
        if session.evaluation_due(step + 1) and await session.evaluate(comm, step + 1, parameters=centre):
            return


def check(_ranks: int, settings: Mapping[str, Any]) -> None:
    """Raise ValueError for settings that make no training."""
    if settings["period"] < 1:
        raise ValueError(f"period: must be at least 1, not {settings['period']}")
    if not 0 < settings["beta"] <= 1:
        raise ValueError(f"beta: must be more than 0 and at most 1, not {settings['beta']}")
