from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from hpcdl.optim.position import position
from hpcdl.training.backpropagation import gradient
from hpcdl.training.quota import KEEPER, evaluations_due, hand_out, numbered_steps
from hpcdl.training.snapshots import Snapshots

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcdl.fabric.comm import Array, Comm
    from hpcdl.fabric.task import Task
    from hpcdl.training.session import Session

AGGREGATES = False
STOPS = False

BETA: Final = 0.9
"""The moving rate times the number of workers, as the paper recommends."""

_VISIT: Final = 1
_PULL: Final = 2


async def elastic_averaging(
    comm: Comm,
    session: Session,
    *,
    period: int = 4,
    moving_rate: float | None = None,
    dedicated: bool = False,
) -> None:
    """Asynchronous EASGD: workers tied to a centre by springs (Zhang, Choromanska & LeCun 2015, algorithm 1).

    Every ``period`` (tau) steps of its own a worker x and the centre c draw each other nearer, both from the old
    x:

        x  <-  x - a (x - c)        c  <-  c + a (x - c)

    with a = ``moving_rate``, 0.9 / workers unless given, and x takes its gradient step, also from the old x: the
    exchange lies beside the gradient. With SGD this is EASGD; with Nesterov (0.99 in the paper) EAMSGD, algorithm
    2, where x is without the look-ahead at which the gradient is taken.

    Rank 0 keeps the centre, beside its own training or, ``dedicated``, instead of it. It moves the centre by one
    worker at a time, so that sum of all x and c changes by gradient steps only. The training's steps x workers
    steps fall to whoever is ready, each on the worker's own shares, in order. A worker's gradient is the mean over
    its share. Evaluations, after the end, test snapshots of the centre.

    Messages: each visit sends the parameters there and back; a worker has one under way, so the centre is sent as
    many at once as there are workers. Memory: a worker ``spring``; rank 0 in addition ``centre`` and ``visitor``.
    """
    first = KEEPER + 1 if dedicated else KEEPER
    workers = comm.size - first
    snapshots = Snapshots(session)
    beside: list[Task[None]] = []
    if comm.rank == KEEPER:
        rate = BETA / workers if moving_rate is None else moving_rate
        beside.append(comm.start(hand_out(comm, session.steps * workers, workers), shared_tags=True))
        beside.append(comm.start(keep(comm, session, snapshots, workers, period, rate), shared_tags=True))
    if comm.rank >= first:
        await work(comm, session, snapshots, comm.rank - first, workers, period)
    for task in beside:
        await task
    await snapshots.evaluate(comm, "sum", worked=comm.rank >= first)


def check(ranks: int, settings: Mapping[str, Any]) -> None:
    """Raise ValueError for settings that make no training."""
    if settings["period"] < 1:
        raise ValueError(f"period: must be at least 1, not {settings['period']}")
    moving_rate = settings["moving_rate"]
    if moving_rate is not None and not 0 < moving_rate <= 1:
        raise ValueError(f"moving_rate: must be more than 0 and at most 1, not {moving_rate}")
    if settings["dedicated"] and ranks == 1:
        raise ValueError("dedicated: with one rank nobody is left to train")


async def work(comm: Comm, session: Session, snapshots: Snapshots, worker: int, workers: int, period: int) -> None:
    """Train, and visit the centre every ``period`` steps, until all steps are made."""
    replica = session.replica
    x = replica.parameters
    spring = session.vector("spring")
    own = 0
    async for number in numbered_steps(comm):
        step = number // workers
        snapshots.note(step)
        rate = session.learning_rate(step)
        with session.journal.step(session.epoch(step), rate) as outcome:
            visit = None
            if own % period == 0:
                position(session.optimizer, x, spring)
                visit = comm.start(pull(comm, spring), shared_tags=True)
            await gradient(comm, session, partial(session.input, own, worker, workers), outcome)
            await comm.compute("update", partial(session.optimizer.update, x, replica.gradients, rate))
            if visit is not None:
                await visit
                await comm.add(x, spring)
        own += 1
    await comm.send(spring[:0], KEEPER, _VISIT)


async def pull(comm: Comm, spring: Array) -> None:
    """Visit the centre with the position in ``spring``; leave there what to add to them."""
    await comm.send(spring, KEEPER, _VISIT)
    await comm.recv(spring, KEEPER, _PULL)


async def keep(
    comm: Comm, session: Session, snapshots: Snapshots, workers: int, period: int, moving_rate: float
) -> None:
    """Keep the centre until each of ``workers`` has sent an empty visit."""
    centre, visitor = session.vector("centre"), session.vector("visitor")
    centre[:] = session.replica.parameters
    visits = evaluated = 0
    training = workers
    while training:
        came = await comm.recv(visitor, tag=_VISIT)
        if not came.count:
            training -= 1
            continue
        visitor -= centre
        visitor *= moving_rate
        centre += visitor
        visitor *= -1
        await comm.send(visitor, came.source, _PULL)
        visits += 1
        # a worker's visits are a period apart, the first one before its first step
        made = min(max(0, visits - workers) * period // workers, session.steps - 1)
        for steps in evaluations_due(session, evaluated, made):
            snapshots.take(steps, centre)
        evaluated = max(evaluated, made)
    for steps in evaluations_due(session, evaluated, session.steps):
        snapshots.take(steps, centre)
