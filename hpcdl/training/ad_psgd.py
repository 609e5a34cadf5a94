from collections.abc import Sequence
from functools import partial
from typing import Final

import numpy as np

from hpcdl.fabric.comm import Array, Comm
from hpcdl.fabric.task import Task, join
from hpcdl.fabric.vectors import assign
from hpcdl.optim.parts.protocol import change
from hpcdl.training.parts.gradient import gradient
from hpcdl.training.parts.session import Session
from hpcdl.training.parts.snapshots import COUNTER_RANK, Snapshots, assign_steps, numbered_steps
from hpcdl.training.parts.topologies import GRAPHS, neighbours, parities
from hpcdl.training.parts.traits import Strategy

_REQUEST: Final = 1
_ANSWER: Final = 2

ACTIVE: Final = 0
PASSIVE: Final = 1


class CurrentParameters:
    """A rank's current parameters; averages change them while the gradient of a copy is computed."""

    def __init__(self, session: Session) -> None:
        self.vector = session.vector("current")
        self.vector[:] = session.replica.parameters
        self.version = 0
        """Number of changes: averages and own updates."""
        self.outgoing = session.vector("outgoing")
        self.incoming = session.vector("incoming")

    async def add(self, comm: Comm, difference: Array) -> None:
        """Add ``difference`` to ``vector``."""
        self.version += 1
        await comm.add(self.vector, difference)

    async def copy(self, comm: Comm, into: Array) -> None:
        """Copy ``vector`` to ``into``."""
        await comm.apply("copy", partial(assign, into, self.vector), into.nbytes)

    async def average(self, comm: Comm) -> None:
        """Add half the difference ``incoming`` - ``outgoing``: the step to the average of both ranks' vectors.

        Changes since the message was sent remain. The other rank adds the negative of this difference.
        """

        def halve_difference() -> None:
            self.incoming -= self.outgoing
            self.incoming *= 0.5

        await comm.apply("average", halve_difference, 2 * self.incoming.nbytes)
        await self.add(comm, self.incoming)


async def ad_psgd(comm: Comm, session: Session, *, graph: str = "ring") -> None:
    """Asynchronous decentralised parallel SGD (AD-PSGD; Lian et al. 2018, algorithm 1). No common step.

    A rank i repeats, with a random neighbour j:

        g  <-  gradient(copy of x_i)
        x_i, x_j  <-  (x_i + x_j) / 2          concurrently with the gradient
        x_i  <-  x_i - rate * g

    To avoid deadlock (section 4) ranks are active or passive, alternating with the distance from rank 0. In each
    step an active rank sends a request to one passive neighbour; passive ranks answer one request at a time. Other
    links of ``graph`` (:func:`hpcdl.training.parts.topologies.neighbours`) are not used; these connect all ranks.

    The steps x p steps of all ranks are assigned on request. A rank takes its own shares in order, and its
    gradient is the mean over its share. The learning rate depends on the number of steps begun by all ranks.
    Evaluations, after the end, test the average of the ranks' snapshots.

    Messages per step of an active rank: V bytes (the parameters) in each direction. An active rank has one request
    under way; a passive rank receives at most one request per active neighbour at once. Memory: four vectors,
    ``current``, ``outgoing``, ``incoming`` and ``update``.
    """
    links = neighbours(graph, comm.size, session.inputs.seed)
    parity = parities(links)
    others = [other for other in links[comm.rank] if parity[other] != parity[comm.rank]]
    current, snapshots = CurrentParameters(session), Snapshots(session)
    tasks: list[Task[None]] = []
    if comm.rank == COUNTER_RANK:
        tasks.append(comm.start(assign_steps(comm, session.steps * comm.size, comm.size), shared_tags=True))
    if parity[comm.rank] == PASSIVE:
        tasks.append(comm.start(answer_requests(comm, current, len(others)), shared_tags=True))
    passive = others if parity[comm.rank] == ACTIVE else []
    await work(comm, session, current, snapshots, passive)
    # Passive ranks answer until all active neighbours have ended, which an empty request says.
    for other in passive:
        await comm.send(current.vector[:0], other, _REQUEST)
    await join(tasks)
    session.replica.parameters[:] = current.vector
    snapshots.take_due(session.steps, current.vector)
    await snapshots.evaluate(comm)


async def work(
    comm: Comm, session: Session, current: CurrentParameters, snapshots: Snapshots, passive: Sequence[int]
) -> None:
    """Train until all steps are assigned, and average with ``passive`` neighbours; a passive rank has none."""
    x, gradients = session.replica.parameters, session.replica.gradients
    update = session.vector("update")
    choice = np.random.default_rng((session.inputs.seed, comm.rank))
    async for own, number in numbered_steps(comm):
        step = number // comm.size
        snapshots.take_due(step, current.vector)
        with session.step(step) as (outcome, rate):
            await current.copy(comm, x)
            copied = current.version
            averaging = None
            if passive:
                averaging = comm.start(average(comm, current, int(choice.choice(passive))), shared_tags=True)
            await gradient(comm, session, partial(session.inputs.load, own, comm.rank, comm.size), outcome)
            await comm.compute("update", partial(change, session.optimizer, x, gradients, rate, update))
            if averaging is not None:
                await averaging
            session.journal.update(comm.rank, current.version, current.version - copied, rate)
            await current.add(comm, x)


async def average(comm: Comm, current: CurrentParameters, other: int) -> None:
    """Average with the passive rank ``other``."""
    await current.copy(comm, current.outgoing)
    await comm.send(current.outgoing, other, _REQUEST)
    await comm.recv(current.incoming, other, _ANSWER)
    await current.average(comm)


async def answer_requests(comm: Comm, current: CurrentParameters, active: int) -> None:
    """Average with each rank that sends a request, until each of ``active`` ranks has sent an empty one."""
    while active:
        request = await comm.recv(current.incoming, tag=_REQUEST)
        if request.count:
            await current.copy(comm, current.outgoing)
            await comm.send(current.outgoing, request.source, _ANSWER)
            await current.average(comm)
        else:
            active -= 1


TRAITS: Final = Strategy(aggregates=False, stops_at_target=False, words={"graph": GRAPHS})
