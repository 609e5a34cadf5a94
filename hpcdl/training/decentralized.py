from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from hpcdl.training.backpropagation import gradient
from hpcdl.training.quota import KEEPER, evaluations_due, hand_out, numbered_steps
from hpcdl.training.snapshots import Snapshots

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array, Comm
    from hpcdl.fabric.task import Task
    from hpcdl.training.session import Session

AGGREGATES = False
STOPS = False

_NOTE: Final = 1
_UPDATE: Final = 2
_TAKEN: Final = 3


class Arrivals:
    """Updates of others that a rank has received and not yet applied, added up, and where they come from."""

    def __init__(self, session: Session, ranks: int) -> None:
        self.session = session
        self.total = session.vector("arrived")
        self.incoming = session.vector("incoming")
        self.applied = np.zeros(ranks, np.int64)
        """Updates of each rank, this one included, that are in the parameters."""
        self.waiting: list[tuple[int, Array]] = []
        """Sender and note of each update that is in ``total``."""

    def apply(self) -> None:
        """Put them into the parameters, at once: no other program of the rank runs meanwhile."""
        parameters = self.session.replica.parameters
        parameters += self.total
        self.total[:] = 0
        for source, note in self.waiting:
            staleness = int(np.maximum(self.applied - note[1:], 0).sum())
            self.note(source, staleness, int(note[0]))
        self.waiting.clear()

    def note(self, source: int, staleness: int, number: int) -> None:
        """Count an update as applied, made in the step of this ``number``."""
        rate = self.session.learning_rate(number // len(self.applied))
        self.session.journal.update(source, int(self.applied.sum()), staleness, rate)
        self.applied[source] += 1


async def decentralized(comm: Comm, session: Session) -> None:
    """Every worker sends its updates to all others, which apply them when they come (Strom 2015, section 3).

    There is no server and there are no common steps. A rank computes a gradient, makes its update, applies it at
    once and sends it to all; between its steps it applies what has come meanwhile. Each update is applied exactly
    once by everybody, so that in the end all ranks hold the same parameters but for the order of the sums.

    An update is what the session's optimizer makes of the mean gradient over the rank's share, times the share's
    part of the global batch: p of them made from the same parameters are a step of synchronous training, for
    optimizers linear in the gradient. Its staleness, on a rank that applies it, is the number of updates there
    that it was computed without. The training's steps x p steps fall to whoever is ready, each on the rank's own
    shares, in order.

    Messages per step: p - 1 of the parameters' size, with a note before and an answer after. A rank sends its next
    update when all others have taken the last one, so p - 1 at most are on their way to a rank, which takes them
    during its own work. Memory: four vectors, ``outgoing``, ``before``, ``incoming`` and ``arrived``.
    Evaluations, after the end, test the average over ranks of snapshots.
    """
    arrivals, snapshots = Arrivals(session, comm.size), Snapshots(session)
    beside = [comm.start(listen(comm, arrivals), shared_tags=True)]
    if comm.rank == KEEPER:
        beside.append(comm.start(hand_out(comm, session.steps * comm.size, comm.size), shared_tags=True))
    evaluated = await work(comm, session, arrivals, snapshots)
    for task in beside:
        await task
    arrivals.apply()
    for steps in evaluations_due(session, evaluated, session.steps):
        snapshots.take(steps, session.replica.parameters)
    await snapshots.evaluate(comm)


async def work(comm: Comm, session: Session, arrivals: Arrivals, snapshots: Snapshots) -> int:
    """Train until all steps are made; of those begun by all, up to how many were evaluations seen to."""
    replica = session.replica
    x = replica.parameters
    outgoing, before = session.vector("outgoing"), session.vector("before")
    others = [other for other in range(comm.size) if other != comm.rank]
    under_way: list[Task[None]] = []
    own = evaluated = 0
    async for number in numbered_steps(comm):
        step = number // comm.size
        for steps in evaluations_due(session, evaluated, step):
            snapshots.take(steps, x)
        evaluated = step
        rate = session.learning_rate(step)
        with session.journal.step(session.epoch(step), rate) as outcome:
            arrivals.apply()
            await gradient(comm, session, partial(session.input, own, comm.rank, comm.size), outcome)
            before[:] = x
            await comm.compute("update", partial(session.optimizer.update, x, replica.gradients, rate))
            x -= before
            x *= outcome.images / session.global_batch
            while under_way:
                await under_way.pop()
            encode(x, outgoing)
            x += before
            note = np.array([number, *arrivals.applied])
            under_way = [comm.start(deliver(comm, note, outgoing, other), shared_tags=True) for other in others]
            arrivals.note(comm.rank, 0, number)
        own += 1
    while under_way:
        await under_way.pop()
    for other in others:
        await comm.send(np.empty(0, np.int64), other, _NOTE)
    return evaluated


async def deliver(comm: Comm, note: Array, payload: Array, other: int) -> None:
    """Bring one update to one rank and wait until it is taken."""
    await comm.send(note, other, _NOTE)
    await comm.send(payload, other, _UPDATE)
    await comm.recv(np.empty(0, np.int64), other, _TAKEN)


async def listen(comm: Comm, arrivals: Arrivals) -> None:
    """Take the others' updates until each of them has sent an empty note."""
    note = np.zeros(1 + comm.size, np.int64)
    training = comm.size - 1
    while training:
        came = await comm.recv(note, tag=_NOTE)
        if not came.count:
            training -= 1
            continue
        taken = await comm.recv(arrivals.incoming, came.source, _UPDATE)
        decode(arrivals.incoming[: taken.count], arrivals.total)
        arrivals.waiting.append((came.source, note.copy()))
        await comm.send(note[:0], came.source, _TAKEN)


def encode(update: Array, payload: Array) -> None:
    """Put an update into the form that is sent; here as it is."""
    payload[:] = update


def decode(payload: Array, into: Array) -> None:
    """Add what was sent to the sum of what has arrived."""
    into += payload
