"""Gossip in common steps: D-PSGD, CHOCO-SGD, and stochastic gradient push."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from operator import imul, isub, itruediv
from typing import Any, Final

import numpy as np

from hpcdl import registry
from hpcdl.compression.parts.protocol import Compression, Layout
from hpcdl.fabric.comm import Array, Comm
from hpcdl.fabric.task import join
from hpcdl.fabric.vectors import assign, no_bytes
from hpcdl.training.parts.gradient import gradient
from hpcdl.training.parts.plan import Piece, Plan, readable
from hpcdl.training.parts.session import Session
from hpcdl.training.parts.topologies import GRAPHS, Links, metropolis, neighbours, pushes
from hpcdl.training.parts.traits import Settings, Strategy

MAX_VARIANCE: Final = 0.5
"""Largest variance of an unbiased quantiser, by the squared norm; the error contracts below 1."""


async def d_psgd(
    comm: Comm,
    session: Session,
    *,
    graph: str = "ring",
    mixing: str = "overlap",
    consensus_step: float | None = None,
) -> None:
    """Decentralised parallel SGD: average parameters with the neighbours (Lian et al. 2017, algorithm 1).

        x_i  <-  sum over j of W_ij x_j  -  rate * gradient(old x_i)

    W is symmetric and doubly stochastic (Metropolis weights; 1/3 on a ring). Both terms use the old parameters, so
    that the messages overlap with the gradient. With ``mixing`` = ``"after"`` the mixing follows the update, which
    the paper allows too:

        x_i  <-  sum over j of W_ij (x_j - rate * gradient(x_j))

    On the complete graph that is synchronous training, for optimizers that are linear in the gradient.
    ``consensus_step``, gamma, replaces W by (1 - gamma) I + gamma W; default: 1. With a compressor, which needs
    gamma, it is CHOCO-SGD (:class:`CompressedGossip`).

    ``graph``: see :func:`hpcdl.training.parts.topologies.neighbours`. A rank's gradient is the mean over its own
    share of the batch. Evaluations test the average over ranks.

    Messages per rank and step: V bytes (the parameters), or the compressor's message, to each neighbour. At most
    two messages are under way on a link in each direction. Memory: two vectors, ``mixed`` and ``incoming``; with a
    compressor the copies besides.
    """
    x = session.replica.parameters
    gamma = 1.0 if consensus_step is None else consensus_step
    row = metropolis(neighbours(graph, comm.size, session.inputs.seed), comm.rank)
    weights = {rank: gamma * weight + (1 - gamma) * (rank == comm.rank) for rank, weight in row.items()}
    mixed, incoming = session.vector("mixed"), session.vector("incoming")
    gossip = CompressedGossip(comm, session, weights).mix if session.compressed else partial(mix_dense, weights)
    mix = partial(gossip, comm, x, mixed, incoming)
    for step in range(session.steps):
        with session.step(step) as (outcome, rate):
            share = partial(session.inputs.load, step, comm.rank, comm.size)
            if mixing == "overlap":
                mixing_task = comm.start(mix(step))
                await gradient(comm, session, share, outcome)
                await mixing_task
                await comm.apply("mix", partial(isub, mixed, x), x.nbytes)
                await session.update(comm, rate)
                await comm.add(x, mixed)
            else:
                await gradient(comm, session, share, outcome)
                await session.update(comm, rate)
                await mix(step)
                await comm.apply("mix", partial(assign, x, mixed), x.nbytes)
        if session.evaluation.due(step + 1) and await session.evaluation.test_average(comm, step + 1, x):
            return


async def mix_dense(
    weights: Mapping[int, float], comm: Comm, x: Array, mixed: Array, incoming: Array, _step: int
) -> None:
    """Set ``mixed`` to the sum of this rank's and its neighbours' ``x`` by ``weights``, added in rank order.

    ``weights``: this rank's row of the mixing matrix.
    """
    others = sorted(weights.keys() - {comm.rank})
    sends = [comm.start(comm.send(x, other), shared_tags=True) for other in others]
    await comm.apply("mix", partial(assign, mixed, x), x.nbytes)
    await comm.apply("mix", partial(imul, mixed, weights[comm.rank]), x.nbytes)
    for other in others:
        await comm.recv(incoming, other, 0)
        await comm.apply("mix", partial(imul, incoming, weights[other]), x.nbytes)
        await comm.add(mixed, incoming)
    await join(sends)


class CompressedGossip:
    """CHOCO-SGD: Koloskova et al. 2019, algorithm 2, where the mixing follows the update; 2020, algorithm 1, else.

    Each rank keeps a copy c_j of its own and its neighbours' parameters, 0 at first. It sends the difference
    C(x_i - c_i), encoded by the compressor C, and all add it to their c_i, which keeps the error for the next
    message. All ranks decode the same messages, so that copies are equal, bit for bit. The sum of W_ij x_j becomes

        x_i  +  gamma * sum over j of W_ij (c_j - c_i)

    The gamma that converges depends on the compressor and the graph, so that it is required: 1 for 16 bits, and
    the less, the fewer entries are sent. The error of a message must be less than the difference: an unbiased
    quantiser is accepted if its variance is at most half the squared norm. The first ``warmup_steps`` messages are
    dense. ``weights``: gamma * W_ij, this rank's row.
    """

    def __init__(self, comm: Comm, session: Session, weights: Mapping[int, float]) -> None:
        assert session.compressed is not None
        self._compressed = compressed = session.compressed
        self._codec = compressed.codec(comm.rank, comm.size, residual=False)
        self._span = slice(0, session.replica.parameters.size)
        self._weights = {other: weights[other] for other in sorted(weights) if other != comm.rank}
        self._own = session.vector("own copy")
        self._copies = {other: session.vector(f"copy of rank {other}") for other in self._weights}

    async def mix(self, comm: Comm, x: Array, mixed: Array, addend: Array, step: int) -> None:
        """Set ``mixed`` to ``x`` + sum over neighbours of weight x (their copy - own copy).

        ``addend`` loses its values. Raises FloatingPointError, naming step and tensor, for a value that is not
        finite, and ValueError, naming the sender, for a corrupt message.
        """
        if self._compressed.is_dense(step):
            await self._send_parameters(comm, x, step)
        else:
            await self._send_differences(comm, x, mixed, step)
        await comm.apply("mix", partial(assign, mixed, x), x.nbytes)
        for other, copy in self._copies.items():
            await comm.apply("mix", partial(self._weigh, addend, copy, self._weights[other]), 2 * x.nbytes)
            await comm.add(mixed, addend)

    async def _send_parameters(self, comm: Comm, x: Array, step: int) -> None:
        """Send ``x`` to the neighbours and replace all copies."""
        sends = [comm.start(comm.send(x, other), shared_tags=True) for other in self._copies]
        await comm.apply("copy", partial(assign, self._own, x), x.nbytes)
        for other, copy in self._copies.items():
            await comm.recv(copy, other, 0)
        await join(sends)
        self._compressed.count(step, self._span, len(sends) * x.nbytes)

    async def _send_differences(self, comm: Comm, x: Array, difference: Array, step: int) -> None:
        """Send ``x`` - own copy, encoded, to the neighbours and add all messages to the copies."""
        codec, span = self._codec, self._span

        def encode() -> int:
            np.subtract(x, self._own, out=difference)
            return codec.encode(Piece(span, difference, None, step), outgoing)

        bound, empty = codec.bound(span), no_bytes(x)
        with comm.scratch(bound, empty) as outgoing, comm.scratch(bound, empty) as incoming:
            length = await comm.apply("encode", encode, 3 * x.nbytes)
            message = outgoing[:length]
            sends = [comm.start(comm.send(message, other), shared_tags=True) for other in self._copies]
            # By the message, not by the exact difference: copies of one rank must be equal on all its neighbours.
            await codec.add(comm, span, {comm.rank: message}, self._own)
            for other, copy in self._copies.items():
                status = await comm.recv(incoming, other, 0)
                await codec.add(comm, span, {other: incoming[: status.count]}, copy)
            await join(sends)
        self._compressed.count(step, self._span, len(sends) * length)

    def _weigh(self, addend: Array, copy: Array, weight: float) -> None:
        np.subtract(copy, self._own, out=addend)
        addend *= weight


def check(_ranks: int, settings: Settings) -> None:
    """Raise ValueError for a consensus step out of range."""
    gamma = settings["consensus_step"]
    if gamma is not None and not 0 < gamma <= 1:
        raise ValueError(f"consensus_step: must be above 0 and at most 1, not {gamma}")


def check_compression(plan: Plan, settings: Settings) -> None:
    """Raise ValueError for a compressor whose error may exceed the difference, and without a consensus step."""
    if not _contracts(plan.make, plan.traits):
        variance = _variance(plan.make)
        size = f" (variance up to {variance:.3g} of the squared norm; accepted: {MAX_VARIANCE})"
        size *= math.isfinite(variance)
        make, traits = (partial(registry.find, "compression"), partial(registry.traits, "compression"))
        those = [n for n in registry.names("compression") if _contracts(make(n), traits(n, Compression))]
        raise ValueError(
            f"the error of {plan.name}{size} may exceed the difference that 'd_psgd' sends; "
            f"these have smaller errors: {', '.join(those)}"
        )
    if plan.settings.error_feedback is not None:
        raise ValueError("error_feedback: the copies that 'd_psgd' keeps already hold what is not sent")
    if settings["consensus_step"] is None:
        raise ValueError(
            "'d_psgd' then needs its setting consensus_step, above 0 and at most 1: 1 for 16 bits, and the less, "
            "the fewer entries are sent"
        )


def _contracts(make: Callable[..., Any], traits: Compression) -> bool:
    """Return True if the error of a message between two ranks is less than the vector, as error feedback needs."""
    if not readable(make):
        return False
    return traits.error_feedback or traits.rounds_values or _variance(make) <= MAX_VARIANCE


def _variance(make: Callable[..., Any]) -> float:
    """Return the largest variance of an unbiased quantiser, by the squared norm; infinite if it states none."""
    return float(getattr(make(Layout(size=1)), "variance", math.inf))


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


OFFERS: Final = {"d_psgd": d_psgd, "stochastic_gradient_push": stochastic_gradient_push}
TRAITS: Final = {
    "d_psgd": Strategy(
        aggregates=False,
        compresses=True,
        words={"graph": GRAPHS, "mixing": ("overlap", "after")},
        check=check,
        check_compression=check_compression,
    ),
    "stochastic_gradient_push": Strategy(aggregates=False, words={"graph": GRAPHS}),
}
