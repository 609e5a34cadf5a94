from functools import partial
from operator import isub, itruediv
from typing import Final

from hpcdl.fabric.comm import Array, Comm
from hpcdl.fabric.task import join
from hpcdl.fabric.vectors import assign
from hpcdl.training.parts.gradient import gradient
from hpcdl.training.parts.session import Session
from hpcdl.training.parts.topologies import GRAPHS, Links, pushes
from hpcdl.training.parts.traits import Strategy


async def stochastic_gradient_push(comm: Comm, session: Session, *, graph: str = "exponential") -> None:
    """Stochastic gradient push: gossip over directed links by push-sum (Assran et al. 2019, algorithm 1).

        z  =  x / w                                    the replica's parameters; w is 1 at first
        x  <-  x - rate * gradient(z)
        x, w  <-  (x, w) / (targets + 1), and send this part to each target
        x, w  <-  own part + sum of the parts received

    The sums of x and of w over ranks do not change, so z tends to the average. A rank need not know the number of
    its senders. With one target per step at the distances 1, 2, 4, ... the average is exact after log2 p steps,
    where p is a power of two.

    ``graph``: see :func:`hpcdl.training.parts.topologies.pushes`. A rank's gradient is the mean over its own
    share of the batch. Evaluations test the average of z over ranks.

    Messages per rank and step: V bytes (the parameters) and the weight to 1 target; to 1 or 2 on a torus or a
    random graph, to p - 1 on the complete graph. Each rank waits for at least one message per step, so that no
    rank is p steps ahead of another. Memory: three vectors, ``biased``, ``part`` and ``incoming``, each one
    element longer than the parameters.
    """
    replica = session.replica
    z = replica.parameters
    biased, part, incoming = (session.vector(name, z.size + 1) for name in ("biased", "part", "incoming"))
    x = biased[:-1]
    x[:] = z
    biased[-1] = 1
    for step in range(session.steps):
        with session.step(step) as (outcome, rate):
            await gradient(comm, session, partial(session.inputs.load, step, comm.rank, comm.size), outcome)
            await comm.apply("mix", partial(isub, x, z), x.nbytes)
            await session.update(comm, rate)
            await comm.add(x, z)
            await _push(comm, biased, part, incoming, pushes(graph, comm.size, step, session.inputs.seed))
            await comm.apply("mix", partial(assign, z, x), z.nbytes)
            await comm.apply("mix", partial(itruediv, z, biased[-1]), z.nbytes)
        if session.evaluation.due(step + 1) and await session.evaluation.test_average(comm, step + 1, z):
            return


async def _push(comm: Comm, biased: Array, part: Array, incoming: Array, links: Links) -> None:
    """Replace ``biased``, parameters and their weight, by the own part plus the parts received."""
    targets = links[comm.rank]
    await comm.apply("mix", partial(itruediv, biased, len(targets) + 1), biased.nbytes)
    await comm.apply("mix", partial(assign, part, biased), part.nbytes)
    sends = [comm.start(comm.send(part, target), shared_tags=True) for target in targets]
    for source, its_targets in enumerate(links):
        if comm.rank in its_targets:
            await comm.recv(incoming, source)
            await comm.add(biased, incoming)
    await join(sends)


TRAITS: Final = Strategy(aggregates=False, words={"graph": GRAPHS})
