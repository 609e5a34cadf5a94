"""Elastic averaging SGD, asynchronous and synchronous (Zhang, Choromanska & LeCun 2015)."""

from functools import partial
from operator import isub
from typing import Final

from hpcdl.fabric.comm import Array, Comm
from hpcdl.fabric.task import Task, join
from hpcdl.optim.parts.protocol import without_lookahead
from hpcdl.training.parts.gradient import gradient
from hpcdl.training.parts.session import Session
from hpcdl.training.parts.snapshots import COUNTER_RANK, Snapshots, assign_steps, numbered_steps
from hpcdl.training.parts.traits import Settings, Strategy

BETA: Final = 0.9
"""The moving rate times the number of workers, as the paper recommends."""
CENTRE_RANK: Final = 0

_POSITION: Final = 1
_PULL: Final = 2


async def elastic_averaging(
    comm: Comm, session: Session, *, period: int = 4, moving_rate: float | None = None, dedicated: bool = False
) -> None:
    """Asynchronous elastic averaging SGD (EASGD; Zhang, Choromanska & LeCun 2015, algorithm 1).

    Each worker has parameters x. Every ``period`` (tau) of its steps it exchanges with the centre c:

        x  <-  x - a (x - c) - rate * gradient(x)        c  <-  c + a (x - c)

    with a = ``moving_rate``, 0.9 / workers by default. All terms use the old x, so that the messages overlap with
    the gradient. In the other steps the worker makes its gradient step alone. With SGD this is EASGD, with
    Nesterov (0.99 in the paper) EAMSGD, algorithm 2; there x is without the look-ahead at which the gradient is
    taken.

    Rank 0 keeps the centre and trains too; with ``dedicated`` it does not train. It serves one worker at a time,
    so only gradient steps change the sum of all x and c. The steps x workers steps of all workers are assigned on
    request. A worker takes its own shares in order, and its gradient is the mean over its share. Evaluations,
    after the end, test snapshots of the centre.

    Messages per exchange: V bytes (the parameters) in each direction. A worker has one exchange under way, so
    the centre receives at most one message per worker at once. Memory: ``pull`` on a worker; ``centre`` and
    ``incoming`` on rank 0.
    """
    first = CENTRE_RANK + 1 if dedicated else CENTRE_RANK
    workers = comm.size - first
    snapshots = Snapshots(session)
    tasks: list[Task[None]] = []
    if comm.rank == COUNTER_RANK:
        tasks.append(comm.start(assign_steps(comm, session.steps * workers, workers), shared_tags=True))
    if comm.rank == CENTRE_RANK:
        rate = BETA / workers if moving_rate is None else moving_rate
        tasks.append(comm.start(serve_centre(comm, session, snapshots, workers, period, rate), shared_tags=True))
    if comm.rank >= first:
        await work(comm, session, snapshots, comm.rank - first, workers, period)
    await join(tasks)
    await snapshots.evaluate(comm, "sum", worked=comm.rank >= first)


def _check(ranks: int, settings: Settings) -> None:
    moving_rate = settings["moving_rate"]
    if moving_rate is not None and not 0 < moving_rate <= 1:
        raise ValueError(f"moving_rate: must be more than 0 and at most 1, not {moving_rate}")
    if settings["dedicated"] and ranks == 1:
        raise ValueError("dedicated: with one rank there is no worker")


async def work(comm: Comm, session: Session, snapshots: Snapshots, worker: int, workers: int, period: int) -> None:
    """Train until all steps are assigned, and exchange with the centre every ``period`` steps."""
    replica = session.replica
    x = replica.parameters
    pull = session.vector("pull")
    async for own, number in numbered_steps(comm):
        step = number // workers
        snapshots.note_progress(step)
        with session.step(step) as (outcome, rate):
            exchange = None
            if own % period == 0:
                await comm.apply("pull", partial(without_lookahead, session.optimizer, x, pull), x.nbytes)
                exchange = comm.start(exchange_with_centre(comm, pull), shared_tags=True)
            await gradient(comm, session, partial(session.inputs.load, own, worker, workers), outcome)
            await session.update(comm, rate)
            if exchange is not None:
                await exchange
                await comm.add(x, pull)
    # The centre serves until each worker has ended, which an empty position says.
    await comm.send(pull[:0], CENTRE_RANK, _POSITION)


async def exchange_with_centre(comm: Comm, pull: Array) -> None:
    """Send the position in ``pull`` to the centre and replace it by the centre's pull on the worker."""
    await comm.send(pull, CENTRE_RANK, _POSITION)
    await comm.recv(pull, CENTRE_RANK, _PULL)


async def serve_centre(
    comm: Comm, session: Session, snapshots: Snapshots, workers: int, period: int, moving_rate: float
) -> None:
    """Serve exchanges with the centre until each of ``workers`` has sent an empty position."""
    centre, incoming = session.vector("centre"), session.vector("incoming")
    centre[:] = session.replica.parameters

    def compute_pull() -> None:
        nonlocal centre, incoming
        incoming -= centre
        incoming *= moving_rate
        centre += incoming
        incoming *= -1

    exchanges = 0
    training = workers
    while training:
        sender = await comm.recv(incoming, tag=_POSITION)
        if not sender.count:
            training -= 1
            continue
        await comm.apply("pull", compute_pull, 4 * centre.nbytes)
        await comm.send(incoming, sender.source, _PULL)
        exchanges += 1
        # a worker's exchanges are a period apart, the first one before its first step
        made = min(max(0, exchanges - workers) * period // workers, session.steps - 1)
        snapshots.take_due(made, centre)
    snapshots.take_due(session.steps, centre)


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
    x = session.replica.parameters
    centre, pull, pulls = (session.vector(name) for name in ("centre", "pull", "pulls"))
    centre[:] = x
    # without an aggregation (the no-communication baseline) each centre has one worker
    moving_rate = beta / (1 if session.independent else comm.size)

    def compute_pull() -> None:
        nonlocal pull
        without_lookahead(session.optimizer, x, pull)
        pull -= centre
        pull *= moving_rate
        pulls[:] = pull

    for step in range(session.steps):
        with session.step(step) as (outcome, rate):
            summing = None
            if step % period == 0:
                await comm.apply("pull", compute_pull, 4 * x.nbytes)
                summing = comm.start(session.aggregate(comm, pulls))
            await gradient(comm, session, partial(session.inputs.load, step, comm.rank, comm.size), outcome)
            await session.update(comm, rate)
            if summing is not None:
                await summing
                await comm.apply("pull", partial(isub, x, pull), x.nbytes)
                await comm.add(centre, pulls)
        if session.evaluation.due(step + 1) and await session.evaluation.test(comm, step + 1, parameters=centre):
            return


def _check_beta(_ranks: int, settings: Settings) -> None:
    if not 0 < settings["beta"] <= 1:
        raise ValueError(f"beta: must be more than 0 and at most 1, not {settings['beta']}")


OFFERS: Final = {
    "elastic_averaging": elastic_averaging,
    "synchronous_elastic_averaging": synchronous_elastic_averaging,
}
TRAITS: Final = {
    "elastic_averaging": Strategy(
        aggregates=False,
        stops_at_target=False,
        least={"period": 1},
        check=_check,
        workers=lambda ranks, settings: range(CENTRE_RANK + settings["dedicated"], ranks),
        cycle=lambda settings: int(settings["period"]),
    ),
    "synchronous_elastic_averaging": Strategy(
        least={"period": 1}, check=_check_beta, cycle=lambda settings: int(settings["period"])
    ),
}
