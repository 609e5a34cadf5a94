from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from hpcdl.training.backpropagation import gradient
from hpcdl.training.topologies import check_graph, pushes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcdl.fabric.comm import Array, Comm
    from hpcdl.training.session import Session
    from hpcdl.training.topologies import Links

AGGREGATES = False


async def stochastic_gradient_push(comm: Comm, session: Session, *, graph: str = "exponential") -> None:
    """SGP: gossip over directed links by push-sum (Assran et al. 2019, algorithm 1).

        x  <-  x - rate * gradient(z)                  z = x / w: the replica's parameters
        x, w  <-  sum of the parts of x, w that are pushed here

    A rank divides x and its weight w, at first 1, into equal parts, keeps one and pushes the others. That
    preserves the sums of x and of w, so z tends to the average although no rank knows how many push to it. One
    peer a step at the distances 1, 2, 4, ... averages exactly within log2 p steps where p is a power of two.

    ``graph``: see :func:`hpcdl.training.topologies.pushes`. A rank's gradient is the mean over its own share of
    the batch. Evaluations test the average of z over ranks.

    Messages per rank and step: one, on a torus and a random graph one or two, on the complete graph p - 1; each
    the parameters and the weight. Every step somebody pushes to every rank, and a rank waits for that: whoever
    stands still stops one more rank each step at least, so nobody is p steps ahead, and nobody is sent more
    meanwhile.
    Memory: three vectors, ``biased``, ``part`` and ``incoming``, each one element longer than the parameters.
    """
    replica = session.replica
    z = replica.parameters
    biased, part, incoming = (session.vector(name, z.size + 1) for name in ("biased", "part", "incoming"))
    x = biased[:-1]
    x[:] = z
    biased[-1] = 1
    for step in range(session.steps):
        rate = session.learning_rate(step)
        with session.journal.step(session.epoch(step), rate) as outcome:
            await gradient(comm, session, partial(session.input, step, comm.rank, comm.size), outcome)
            x -= z
            await comm.compute("update", partial(session.optimizer.update, z, replica.gradients, rate))
            x += z
            await _push(comm, biased, part, incoming, pushes(graph, comm.size, step, session.seed))
            z[:] = x
            z /= biased[-1]
        if session.evaluation_due(step + 1) and await session.evaluate_average(comm, step + 1, z):
            return


def check(_ranks: int, settings: Mapping[str, Any]) -> None:
    """Raise ValueError for a graph that there is not."""
    check_graph(settings["graph"])


async def _push(comm: Comm, biased: Array, part: Array, incoming: Array, links: Links) -> None:
    """Replace ``biased``, parameters and their weight, by the sum of what is pushed here and what is kept."""
    targets = links[comm.rank]
    biased /= len(targets) + 1
    part[:] = biased
    sends = [comm.start(comm.send(part, target), shared_tags=True) for target in targets]
    for source, theirs in enumerate(links):
        if comm.rank in theirs:
            await comm.recv(incoming, source)
            await comm.add(biased, incoming)
    for sent in sends:
        await sent
