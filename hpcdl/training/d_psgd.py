from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from hpcdl.registry import nearest
from hpcdl.training.backpropagation import gradient
from hpcdl.training.topologies import check_graph, metropolis, neighbours

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcdl.fabric.comm import Array, Comm
    from hpcdl.training.session import Session

AGGREGATES = False

_MIXINGS = ("beside", "after")


async def d_psgd(comm: Comm, session: Session, *, graph: str = "ring", mixing: str = "beside") -> None:
    """Decentralised parallel SGD: parameters are averaged with the neighbours' (Lian et al. 2017, algorithm 1).

        x_i  <-  sum over j of W_ij x_j  -  rate * gradient(old x_i)

    W is symmetric and doubly stochastic (Metropolis weights; thirds on a ring). Both terms need only old
    parameters, so the neighbours' arrive beside the gradient. With ``mixing`` = ``"after"`` the update comes first
    and its result is mixed, which the paper allows as well; on the complete graph that is synchronous training,
    for optimizers linear in the gradient, and mixing beside is not, since ranks then differ by their last
    gradients.

    ``graph``: see :func:`hpcdl.training.topologies.neighbours`. A rank's gradient is the mean over its own share
    of the batch. Evaluations test the average over ranks.

    Messages per rank and step: its neighbours, each the parameters. A rank that is ahead waits for its neighbours,
    so each link holds two messages in either direction at most. Memory: two vectors, ``mixed`` and ``incoming``.
    """
    replica = session.replica
    x = replica.parameters
    weights = metropolis(neighbours(graph, comm.size, session.seed), comm.rank)
    mixed, incoming = session.vector("mixed"), session.vector("incoming")
    for step in range(session.steps):
        rate = session.learning_rate(step)
        with session.journal.step(session.epoch(step), rate) as outcome:
            share = partial(session.input, step, comm.rank, comm.size)
            update = partial(session.optimizer.update, x, replica.gradients, rate)
            if mixing == "beside":
                arriving = comm.start(_mix(comm, x, mixed, incoming, weights))
                await gradient(comm, session, share, outcome)
                await arriving
                mixed -= x
                await comm.compute("update", update)
                await comm.add(x, mixed)
            else:
                await gradient(comm, session, share, outcome)
                await comm.compute("update", update)
                await _mix(comm, x, mixed, incoming, weights)
                x[:] = mixed
        if session.evaluation_due(step + 1) and await session.evaluate_average(comm, step + 1, x):
            return


def check(_ranks: int, settings: Mapping[str, Any]) -> None:
    """Raise ValueError for a graph or a mixing that there is not."""
    check_graph(settings["graph"])
    mixing = settings["mixing"]
    if mixing not in _MIXINGS:
        raise ValueError(f"mixing: unknown {mixing!r}{nearest(mixing, _MIXINGS)}")


async def _mix(comm: Comm, x: Array, mixed: Array, incoming: Array, weights: Mapping[int, float]) -> None:
    """Put the weighted sum of everybody's ``x``, the neighbours' in rising order, into ``mixed``."""
    others = sorted(weights.keys() - {comm.rank})
    sends = [comm.start(comm.send(x, other), shared_tags=True) for other in others]
    mixed[:] = x
    mixed *= weights[comm.rank]
    for other in others:
        await comm.recv(incoming, other, 0)
        incoming *= weights[other]
        await comm.add(mixed, incoming)
    for sent in sends:
        await sent
