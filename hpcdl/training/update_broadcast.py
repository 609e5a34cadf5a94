from functools import partial
from operator import iadd
from typing import Final

import numpy as np

from hpcdl.fabric.comm import Array, Comm
from hpcdl.fabric.task import Task, join
from hpcdl.fabric.vectors import assign
from hpcdl.optim.parts.protocol import change
from hpcdl.training.parts.compressed import Compressed
from hpcdl.training.parts.gradient import gradient
from hpcdl.training.parts.plan import Piece, Plan
from hpcdl.training.parts.session import Session
from hpcdl.training.parts.snapshots import COUNTER_RANK, Snapshots, assign_steps, numbered_steps
from hpcdl.training.parts.traits import Settings, Strategy

_HEADER, _UPDATE, _ACKNOWLEDGEMENT = range(1, 4)


async def update_broadcast(comm: Comm, session: Session, *, ramp_steps: int = 0) -> None:
    """Every rank sends its updates to all others and does not wait for theirs (Strom 2015, section 3).

    There are no servers and no common steps. A rank repeats:

        x  <-  x + sum of the updates received
        u  <-  share * (optimizer's change of x by the gradient at x)
        x  <-  x + u, and send u to all other ranks

    ``share`` is the rank's share of the global batch. With an optimizer that is linear in the gradient, p updates
    from equal parameters make one step of synchronous training. Every rank applies each update exactly once. An
    update's staleness on a rank is the number of updates applied there that were not in the parameters of its
    gradient.

    With a compressor u is encoded with the residual of earlier ones, and x changes by what the others decode too:
    the paper sends u at its threshold and entropy-codes the positions. The first ``warmup_steps`` updates of a
    rank are dense.

    The steps x p steps of all ranks are assigned on request; a rank takes its own shares in order. In the first
    ``ramp_steps`` steps of all ranks together the number of ranks that train rises from 1 to p; the others apply
    updates only. Evaluations, after the end, test the average of the ranks' snapshots.

    Messages per step: to each other rank a header, V bytes (the parameters) or the encoded update, and an
    acknowledgement in return. A rank sends an update after all ranks have acknowledged its last one. Memory: four
    vectors, ``outgoing``, ``before``, ``incoming`` and ``received``; with a compressor two messages and a residual
    besides.
    """
    received, snapshots = ReceivedUpdates(session, comm.size), Snapshots(session)
    encoded = None if session.compressed is None else EncodedUpdates(comm, session, session.compressed)
    tasks = [comm.start(receive(comm, received, encoded), shared_tags=True)]
    if comm.rank == COUNTER_RANK:
        steps = session.steps * comm.size
        tasks.append(comm.start(assign_steps(comm, steps, comm.size, ramp=ramp_steps), shared_tags=True))
    await work(comm, session, received, snapshots, encoded)
    await join(tasks)
    await received.apply(comm)
    snapshots.take_due(session.steps, session.replica.parameters)
    await snapshots.evaluate(comm)


async def work(
    comm: Comm,
    session: Session,
    received: "ReceivedUpdates",
    snapshots: Snapshots,
    encoded: "EncodedUpdates | None",
) -> None:
    """Train until all steps are assigned."""
    replica = session.replica
    x = replica.parameters
    outgoing, before = session.vector("outgoing"), session.vector("before")
    others = [other for other in range(comm.size) if other != comm.rank]
    under_way: list[Task[None]] = []
    async for own, number in numbered_steps(comm):
        step = number // comm.size
        snapshots.take_due(step, x)
        with session.step(step) as (outcome, rate):
            await received.apply(comm)
            await gradient(comm, session, partial(session.inputs.load, own, comm.rank, comm.size), outcome)
            share = outcome.images / session.global_batch
            await comm.compute("update", partial(make_update, session, rate, share, before))
            await join(under_way)
            if encoded is None or encoded.compressed.is_dense(own):
                await comm.apply("encode", partial(assign, outgoing, x), outgoing.nbytes)
                await comm.add(x, before)
                payload = outgoing
            else:
                payload = await encoded.replace(comm, x, before, own)
            if encoded is not None:
                encoded.compressed.count(own, encoded.span, len(others) * payload.nbytes)
            # By these counts a receiver knows which of its updates this gradient had not seen: its staleness.
            header = np.array([number, *received.applied])
            under_way = [comm.start(deliver(comm, header, payload, other), shared_tags=True) for other in others]
            received.record(comm.rank, 0, number)
    await join(under_way)
    for other in others:
        await comm.send(np.empty(0, np.int64), other, _HEADER)


async def deliver(comm: Comm, header: Array, payload: Array, other: int) -> None:
    """Send one update to one rank and wait for the acknowledgement."""
    await comm.send(header, other, _HEADER)
    await comm.send(payload, other, _UPDATE)
    await comm.recv(np.empty(0, np.int64), other, _ACKNOWLEDGEMENT)


async def receive(comm: Comm, received: "ReceivedUpdates", encoded: "EncodedUpdates | None") -> None:
    """Receive updates until all ranks have sent an empty header; ValueError names the sender of a corrupt one."""
    header = np.zeros(1 + comm.size, np.int64)
    training = comm.size - 1
    while training:
        sender = await comm.recv(header, tag=_HEADER)
        if not sender.count:
            training -= 1
            continue
        dense = encoded is None or encoded.compressed.is_dense(int(received.received[sender.source]))
        received.received[sender.source] += 1
        incoming = received.incoming if encoded is None or dense else encoded.incoming
        update = await comm.recv(incoming, sender.source, _UPDATE)
        payload = incoming[: update.count]
        if encoded is None or dense:
            await comm.apply("decode", partial(iadd, received.total, payload), payload.nbytes)
        else:
            await encoded.codec.add(comm, encoded.span, {sender.source: payload}, received.total)
        received.waiting.append((sender.source, header.copy()))
        await comm.send(header[:0], sender.source, _ACKNOWLEDGEMENT)


def make_update(session: Session, rate: float, share: float, before: Array) -> None:
    """Copy the parameters to ``before`` and replace them by ``share`` x the optimizer's change."""
    x = session.replica.parameters
    change(session.optimizer, x, session.replica.gradients, rate, before)
    x *= share


class EncodedUpdates:
    """Encoder and buffers of one rank's updates, and of those that it receives."""

    def __init__(self, comm: Comm, session: Session, compressed: Compressed) -> None:
        self.compressed = compressed
        self.codec = compressed.codec(comm.rank, comm.size)
        self.span = slice(0, session.replica.parameters.size)
        elements = -(-self.codec.bound(self.span) // session.replica.parameters.itemsize)
        self._outgoing, self.incoming = (
            session.vector(f"{way} message", elements).view(np.uint8) for way in ("outgoing", "incoming")
        )

    async def replace(self, comm: Comm, x: Array, before: Array, number: int) -> Array:
        """Replace the update ``x`` by ``before`` + the decoded message; return the message.

        Raises FloatingPointError, naming step and tensor, for a value that is infinite or not a number.
        """
        piece = Piece(self.span, x, self.compressed.residual, number)
        message = await self.codec.write(comm, piece, self._outgoing)
        await self.codec.add(comm, self.span, {comm.rank: message}, x, base=before)
        return message


class ReceivedUpdates:
    """Sum of the updates that a rank has received and not yet applied, and their senders."""

    def __init__(self, session: Session, ranks: int) -> None:
        self.session = session
        self.total = session.vector("received")
        self.incoming = session.vector("incoming")
        self.received = np.zeros(ranks, np.int64)
        """Number of updates of each rank that have arrived."""
        self.applied = np.zeros(ranks, np.int64)
        """Number of updates of each rank, this one included, that are in the parameters."""
        self.waiting: list[tuple[int, Array]] = []
        """Sender and header of each update that is in ``total``."""

    async def apply(self, comm: Comm) -> None:
        """Add the sum to the parameters."""
        parameters = self.session.replica.parameters

        def drain() -> None:
            nonlocal parameters
            parameters += self.total
            self.total[:] = 0

        await comm.apply("apply", drain, 2 * parameters.nbytes)
        for source, header in self.waiting:
            staleness = int(np.maximum(self.applied - header[1:], 0).sum())
            self.record(source, staleness, int(header[0]))
        self.waiting.clear()

    def record(self, source: int, staleness: int, number: int) -> None:
        """Record that the update which rank ``source`` made in step ``number`` is applied."""
        rate = self.session.learning_rate(number // len(self.applied))
        self.session.journal.update(source, int(self.applied.sum()), staleness, rate)
        self.applied[source] += 1


def check_compression(plan: Plan, _settings: Settings) -> None:
    """Raise ValueError for a compressor that does not keep the size of its values."""
    if not plan.traits.scaled:
        raise ValueError(f"{plan.name} sends signs without a size, which 'update_broadcast' needs for its changes")


TRAITS: Final = Strategy(
    aggregates=False,
    compresses=True,
    stops_at_target=False,
    least={"ramp_steps": 0},
    check_compression=check_compression,
)
