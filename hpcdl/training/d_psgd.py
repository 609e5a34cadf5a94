from __future__ import annotations

from functools import partial
from operator import imul, isub
from typing import TYPE_CHECKING, Any, Final

from hpcdl.fabric.vectors import assign
from hpcdl.registry import nearest
from hpcdl.training.parts.gradient import gradient
from hpcdl.training.parts.topologies import check_graph, metropolis, neighbours
from hpcdl.training.parts.traits import Strategy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcdl.fabric.comm import Array, Comm
    from hpcdl.training.parts.session import Session

_MIXINGS = ("overlap", "after")


async def d_psgd(comm: Comm, session: Session, *, graph: str = "ring", mixing: str = "overlap") -> None:
    """Decentralised parallel SGD: average parameters with the neighbours (Lian et al. 2017, algorithm 1).

        x_i  <-  sum over j of W_ij x_j  -  rate * gradient(old x_i)

    W is symmetric and doubly stochastic (Metropolis weights; 1/3 on a ring). Both terms use the old parameters, so
    that the messages overlap with the gradient. With ``mixing`` = ``"after"`` the mixing follows the update, which
    the paper allows too:

        x_i  <-  sum over j of W_ij (x_j - rate * gradient(x_j))

    On the complete graph that is synchronous training, for optimizers that are linear in the gradient.

    ``graph``: see :func:`hpcdl.training.parts.topologies.neighbours`. A rank's gradient is the mean over its own
    share of the batch. Evaluations test the average over ranks.

    Messages per rank and step: V bytes (the parameters) to each neighbour. A rank waits for its neighbours'
    messages, so at most two messages are under way on a link in each direction. Memory: two vectors, ``mixed`` and
    ``incoming``.
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
            if mixing == "overlap":
                mixing_task = comm.start(_mix(comm, x, mixed, incoming, weights))
                await gradient(comm, session, share, outcome)
                await mixing_task
                await comm.apply("mix", partial(isub, mixed, x), x.nbytes)
                await comm.compute("update", update)
                await comm.add(x, mixed)
            else:
                await gradient(comm, session, share, outcome)
                await comm.compute("update", update)
                await _mix(comm, x, mixed, incoming, weights)
                await comm.apply("mix", partial(assign, x, mixed), x.nbytes)
        if session.evaluation_due(step + 1) and await session.evaluate_average(comm, step + 1, x):
            return


def check(_ranks: int, settings: Mapping[str, Any]) -> None:
    """Raise ValueError for an unknown graph or mixing."""
    check_graph(settings["graph"])
    mixing = settings["mixing"]
    if mixing not in _MIXINGS:
        raise ValueError(f"mixing: unknown {mixing!r}{nearest(mixing, _MIXINGS)}")


async def _mix(comm: Comm, x: Array, mixed: Array, incoming: Array, weights: Mapping[int, float]) -> None:
    """Set ``mixed`` to the weighted sum of this rank's and its neighbours' ``x``, added in rank order."""
    others = sorted(weights.keys() - {comm.rank})
    sends = [comm.start(comm.send(x, other), shared_tags=True) for other in others]
    await comm.apply("mix", partial(assign, mixed, x), x.nbytes)
    await comm.apply("mix", partial(imul, mixed, weights[comm.rank]), x.nbytes)
    for other in others:
        await comm.recv(incoming, other, 0)
        await comm.apply("mix", partial(imul, incoming, weights[other]), x.nbytes)
        await comm.add(mixed, incoming)
    for sent in sends:
        await sent


TRAITS: Final = Strategy(aggregates=False, check=check)
