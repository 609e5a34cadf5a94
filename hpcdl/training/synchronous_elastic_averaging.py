from __future__ import annotations

from functools import partial
from operator import isub
from typing import Final

from hpcdl.fabric.comm import Comm
from hpcdl.optim.parts.protocol import without_lookahead
from hpcdl.training.parts.gradient import gradient
from hpcdl.training.parts.session import Session
from hpcdl.training.parts.traits import Settings, Strategy


async def synchronous_elastic_averaging(
    comm: Comm, session: Session, *, period: int = 1, beta: float = 0.9
) -> None:
    """Synchronous elastic averaging SGD (EASGD; Zhang et al. 2015, section 2, equations 2 and 3).

    Each of p ranks has parameters x_i; all have the same centre c. Every ``period`` (tau) steps:

        x_i  <-  x_i - a (x_i - c) - rate * gradient(x_i)        c  <-  c + a * sum over i of (x_i - c)

    with a = ``beta`` / p. All terms use the old values: c becomes (1 - beta) c + beta * mean of x_i. In the other
    steps x_i makes its gradient step alone. With Nesterov (equation 5) x_i is without the look-ahead at which the
    gradient is taken. The gradient is the mean over the rank's own share of the batch.

    The session's aggregation sums the differences; its messages overlap with the gradient. Only gradient steps
    change the sum of all x_i and c. Evaluations test the centre.

    Messages: one allreduce of V bytes (the parameters) in ``period`` steps. Memory: three vectors, ``centre``,
    ``pull`` and ``pulls``.
    """
    x, gradients = session.replica.parameters, session.replica.gradients
    centre, pull, pulls = (session.vector(name) for name in ("centre", "pull", "pulls"))
    centre[:] = x
    # without an aggregation (the no-communication ceiling) each centre has one worker
    moving_rate = beta / (1 if session.independent else comm.size)

    def compute_pull() -> None:
        nonlocal pull
        without_lookahead(session.optimizer, x, pull)
        pull -= centre
        pull *= moving_rate
        pulls[:] = pull

    for step in range(session.steps):
        rate = session.learning_rate(step)
        with session.journal.step(session.inputs.epoch(step), rate) as outcome:
            summing = None
            if step % period == 0:
                await comm.apply("pull", compute_pull, 4 * x.nbytes)
                summing = comm.start(session.aggregate(comm, pulls))
            await gradient(comm, session, partial(session.inputs.load, step, comm.rank, comm.size), outcome)
            await comm.compute("update", partial(session.optimizer.update, x, gradients, rate))
            if summing is not None:
                await summing
                await comm.apply("pull", partial(isub, x, pull), x.nbytes)
                await comm.add(centre, pulls)
        if session.evaluation.due(step + 1) and await session.evaluation.test(comm, step + 1, parameters=centre):
            return


def check(_ranks: int, settings: Settings) -> None:
    """Raise ValueError for an invalid beta."""
    if not 0 < settings["beta"] <= 1:
        raise ValueError(f"beta: must be more than 0 and at most 1, not {settings['beta']}")


TRAITS: Final = Strategy(least={"period": 1}, check=check, cycle=lambda settings: int(settings["period"]))
