from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hpcdl.training.backpropagation import gradient
from hpcdl.training.quota import KEEPER, evaluations_due, hand_out, numbered_steps
from hpcdl.training.snapshots import Snapshots
from hpcdl.training.topologies import check_graph, colours, neighbours

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpcdl.fabric.comm import Array, Comm
    from hpcdl.fabric.task import Task
    from hpcdl.training.session import Session

AGGREGATES = False
STOPS = False

_OFFER: Final = 1
_ANSWER: Final = 2

ACTIVE: Final = 0
PASSIVE: Final = 1


class Held:
    """A rank's parameters, which others change while it computes a gradient from a copy of them."""

    def __init__(self, session: Session) -> None:
        self.vector = session.vector("held")
        self.vector[:] = session.replica.parameters
        self.version = 0
        """Changes so far: averages with others and own updates."""
        self.outgoing = session.vector("outgoing")
        self.incoming = session.vector("incoming")

    def add(self, difference: Array) -> None:
        """Change ``vector``, at once: no other program of the rank runs meanwhile, and no work is waited for."""
        self.vector += difference
        self.version += 1

    def meet(self) -> None:
        """Move ``vector`` to the average of what both sides had when it was sent, by half their difference.

        What came in between stays; the other side moves by as much the other way, so the sum over both is kept.
        """
        self.incoming -= self.outgoing
        self.incoming *= 0.5
        self.add(self.incoming)


async def ad_psgd(comm: Comm, session: Session, *, graph: str = "ring") -> None:
    """Asynchronous decentralised parallel SGD: one neighbour at a time, no common step (Lian et al. 2018).

    At its own pace a rank computes a gradient from a copy of its parameters, meanwhile takes the average with a
    neighbour's in both places, and then applies the gradient, stale by whatever has changed its parameters since.

    So that no two wait for each other (section 4 of the paper) ranks are of two colours, alternating along every
    way away from rank 0: active ones ask, one passive neighbour per step, at random, and passive ones answer, one
    request at a time. Links of ``graph`` (:func:`hpcdl.training.topologies.neighbours`) within a colour are not
    used. What is left is connected for any p and any graph, odd rings included.

    The training's steps x p steps fall to whoever is ready, each on the rank's own shares, in order; the rate
    follows the number of steps begun by all. A rank's gradient is the mean over its share. Evaluations, after the
    end, test the average over ranks of snapshots.

    Messages: an active rank's step sends the parameters there and back. It has one request under way, so a passive
    rank is sent as many at once as it has active neighbours. Memory: four vectors, ``held``, ``outgoing``,
    ``incoming`` and ``update``.
    """
    links = neighbours(graph, comm.size, session.seed)
    colour = colours(links)
    others = [other for other in links[comm.rank] if colour[other] != colour[comm.rank]]
    held, snapshots = Held(session), Snapshots(session)
    beside: list[Task[None]] = []
    if comm.rank == KEEPER:
        beside.append(comm.start(hand_out(comm, session.steps * comm.size, comm.size), shared_tags=True))
    if colour[comm.rank] == PASSIVE:
        beside.append(comm.start(answer(comm, held, len(others)), shared_tags=True))
    asked = others if colour[comm.rank] == ACTIVE else []
    evaluated = await work(comm, session, held, snapshots, asked)
    for other in asked:
        await comm.send(held.vector[:0], other, _OFFER)
    for task in beside:
        await task
    session.replica.parameters[:] = held.vector
    for steps in evaluations_due(session, evaluated, session.steps):
        snapshots.take(steps, held.vector)
    await snapshots.evaluate(comm)


def check(_ranks: int, settings: Mapping[str, Any]) -> None:
    """Raise ValueError for a graph that there is not."""
    check_graph(settings["graph"])


async def work(comm: Comm, session: Session, held: Held, snapshots: Snapshots, asked: Sequence[int]) -> int:
    """Train until all steps are made; of those begun by all, up to how many were evaluations seen to."""
    x, gradients = session.replica.parameters, session.replica.gradients
    update = session.vector("update")
    choice = np.random.default_rng((session.seed, comm.rank))
    own = evaluated = 0
    async for number in numbered_steps(comm):
        step = number // comm.size
        for steps in evaluations_due(session, evaluated, step):
            snapshots.take(steps, held.vector)
        evaluated = step
        rate = session.learning_rate(step)
        with session.journal.step(session.epoch(step), rate) as outcome:
            x[:] = held.vector
            read = held.version
            averaging = [comm.start(ask(comm, held, int(choice.choice(asked))), shared_tags=True)] if asked else []
            await gradient(comm, session, partial(session.input, own, comm.rank, comm.size), outcome)
            update[:] = x
            await comm.compute("update", partial(session.optimizer.update, x, gradients, rate))
            x -= update
            for task in averaging:
                await task
            session.journal.update(comm.rank, held.version, held.version - read, rate)
            held.add(x)
        own += 1
    return evaluated


async def ask(comm: Comm, held: Held, other: int) -> None:
    """Average with a passive rank."""
    held.outgoing[:] = held.vector
    await comm.send(held.outgoing, other, _OFFER)
    await comm.recv(held.incoming, other, _ANSWER)
    held.meet()


async def answer(comm: Comm, held: Held, active: int) -> None:
    """Average with whoever asks, until each of ``active`` ranks has sent an empty request."""
    while active:
        asked = await comm.recv(held.incoming, tag=_OFFER)
        if asked.count:
            held.outgoing[:] = held.vector
            await comm.send(held.outgoing, asked.source, _ANSWER)
            held.meet()
        else:
            active -= 1
