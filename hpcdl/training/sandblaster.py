from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Final

import numpy as np

from hpcdl.fabric.comm import Array, Comm
from hpcdl.fabric.task import join
from hpcdl.fabric.vectors import assign, partition
from hpcdl.training.parts.gradient import gradient
from hpcdl.training.parts.journal import Moment
from hpcdl.training.parts.mesh import contribute, follow, holders, leads, members, place_among
from hpcdl.training.parts.sandblaster import (
    ORDER,
    REPORT,
    WEIGHTS,
    Command,
    LbfgsCoordinator,
    Order,
    Portions,
    Report,
    Shard,
    fetch,
    push,
)
from hpcdl.training.parts.session import Session
from hpcdl.training.parts.snapshots import share_statistics
from hpcdl.training.parts.traits import Settings, Strategy

COORDINATOR = 0
MAX_HISTORY: Final = 1000
"""Largest number of L-BFGS pairs; each takes the memory of two parameter vectors."""
MAX_SEARCH: Final = 1000


async def sandblaster(
    comm: Comm,
    session: Session,
    *,
    servers: int = 0,
    history: int = 10,
    portions_per_worker: int = 8,
    push_every: int = 4,
    backup: bool = True,
    search: int = 20,
) -> None:
    """Sandblaster L-BFGS: a coordinator, workers and sharded vectors (Dean et al. 2012, section 4.2).

        worker:       x  <-  fetch the parameters, once per gradient
                      g  <-  g + gradient(portion of the batch), while the coordinator assigns portions
                      push g at the coordinator's command
        coordinator:  direction  <-  two-loop recursion over ``history`` pairs
                      length     <-  line search, strong Wolfe conditions, at most ``search`` trials
        server:       vector operations on its shard at the coordinator's command

    The coordinator sends and receives scalars only. A batch has ``portions_per_worker`` portions per worker. A
    worker pushes at least every ``push_every`` portions. At the end of a batch ``backup`` assigns unfinished
    portions to a second worker. With ``servers`` = 0 all ranks are workers and servers, and rank 0 is the
    coordinator too. Otherwise rank 0 is the coordinator, the next ``servers`` ranks are servers, and the others
    are workers.

    A step is one gradient of the global batch. If the batch is all the data (or more than 99 % of it, because
    workers must divide it) it does not change. Then the last gradient of an iteration is the first of the next. A
    smaller batch changes after each iteration; both gradients of a pair come from the same batch (Schraudolph, Yu
    and Guenter 2007), which costs one more gradient.

    The case's optimizer and weight decay are not used. The learning rate is the first length of the line search,
    usually 1. If a worker fails other workers compute its unpushed portions. If a server fails PeerLost is raised.

    On a mesh each model group is one worker, and ``servers`` counts model groups. Every part of the layers has its
    own shards, among the ranks that hold the part. The first rank of a group reports for the group, and the others
    follow. A failed rank ends the training.

    Memory: 6 + 2 ``history`` vectors on each server, as long as its shard; on a worker 1 vector.
    """
    session.inputs.prefetch = 0  # the next portion is not known ahead
    replicas, (number, _) = members(comm, session.group), place_among(comm, session.group)
    serving, working = _roles(len(replicas), servers)
    portions = min(portions_per_worker * len(working), session.global_batch)
    part = replicas[number].index(comm.rank)
    rank = _Participant(comm, session, [replicas[server][part] for server in serving], portions)
    tasks = []
    if comm.rank == COORDINATOR:
        new_portions = partial(Portions, portions, push_every=push_every, backup=backup)
        leaders = [ranks[0] for ranks in replicas]
        shards = [rank for server in serving for rank in replicas[server]]
        coordinator = LbfgsCoordinator(comm, session, leaders, [leaders[w] for w in working], shards, new_portions)
        tasks.append(comm.start(coordinator.minimise(history, search), shared_tags=True))
    if number in serving:
        rank.shard = Shard(session, rank.spans[comm.rank], history, portions)
        tasks.append(comm.start(rank.shard.serve(comm, COORDINATOR), shared_tags=True))
    last = await work(rank, is_worker=number in working)
    await join(tasks)
    if last.number:
        await rank.test(await comm.survivors(), last, is_worker=number in working)


def check(ranks: int, settings: Settings) -> None:
    """Raise ValueError for settings that cannot run on so many ranks."""
    for name, most in {"history": MAX_HISTORY, "search": MAX_SEARCH}.items():
        if settings[name] > most:
            raise ValueError(f"{name}: must be at most {most}, not {settings[name]}")
    servers = settings["servers"]
    if servers and ranks < servers + 2:
        raise ValueError(f"servers: {servers} of them, a coordinator and a worker need more than {ranks} ranks")


def workers(ranks: int, settings: Settings) -> range:
    """Return the ranks that compute gradients."""
    return _roles(ranks, settings["servers"])[1]


def may_fail(ranks: int, settings: Settings) -> range:
    """Return the ranks that may fail: workers without a shard, if there are several."""
    working = workers(ranks, settings)
    return working if settings["servers"] and len(working) > 1 else range(0)


def most_steps(ranks: int, settings: Settings) -> int:
    """Return the most steps of one worker per global batch: one per portion."""
    return int(settings["portions_per_worker"]) * len(workers(ranks, settings))


def cycle(_settings: Settings) -> int:
    """Raise ValueError: losses decide how many gradients a line search computes."""
    raise ValueError("losses decide the length of its line searches, and sizes have none")


def _roles(ranks: int, servers: int) -> tuple[range, range]:
    if servers == 0:
        return range(ranks), range(ranks)
    return range(1, 1 + servers), range(1 + servers, ranks)


class _Participant:
    """State and actions of a rank: report to the coordinator, and test."""

    def __init__(self, comm: Comm, session: Session, servers: Sequence[int], portions: int) -> None:
        self.comm = comm
        self.session = session
        self.portions = portions
        self.shard: Shard | None = None
        bounds = pairwise(partition(session.replica.parameters, len(servers)).begins)
        self.spans = {holder: slice(*span) for holder, span in zip(servers, bounds, strict=True)}
        """Elements of this rank's parameters that each server of them has."""
        session.journal.begin()

    def parts(self, vector: Array) -> list[tuple[int, Array]]:
        """Return (server, its part) for each part of a vector as long as the parameters.

        Workers begin at different servers.
        """
        parts = [(server, vector[span]) for server, span in self.spans.items()]
        begin = place_among(self.comm, self.session.group)[0] % len(parts)
        return [*parts[begin:], *parts[:begin]]

    async def report(self, report: Report) -> Order:
        """Report to the coordinator and wait for the next order.

        The first rank of a replica that spans ranks reports for all, with the sum of their losses.
        """
        words, loss = np.zeros(len(Order._fields)), np.array([report.loss])
        await contribute(self.session.group, loss)
        if leads(self.session.group):
            report = report._replace(loss=float(loss[0]))
            await self.comm.send(np.array(report, float), COORDINATOR, REPORT)
            await self.comm.recv(words, COORDINATOR, ORDER)
        await follow(self.session.group, words)
        command, accepted, number, batch, portion = (int(word) for word in words[:5])
        return Order(Command(command), bool(accepted), number, batch, portion, *map(float, words[5:]))

    async def test(self, comm: Comm, order: Order, *, is_worker: bool) -> bool:
        """Gather the parameters and test them on all ranks; return whether training may stop."""
        replica, ranks = self.session.replica, holders(comm, self.session.group)
        replica.parameters[:] = 0
        if self.shard is not None:
            replica.parameters[self.shard.span] = self.shard.vectors[WEIGHTS]
        await ranks.native("allreduce", replica.parameters)
        await share_statistics(ranks, self.session, worked=is_worker)
        return await self.session.evaluation.test(
            comm, order.number, at=Moment(order.number, int(order.training_ns))
        )


async def work(rank: _Participant, *, is_worker: bool) -> Order:
    """Compute portions, push their sum and test when ordered; return the order to stop. Others only test."""
    replica = rank.session.replica
    accumulated = rank.session.vector("accumulated") if is_worker else replica.gradients
    flags = np.zeros(rank.portions)
    fetched = 0

    async def compute(order: Order) -> Order:
        """Compute a portion's gradient, and add it to ``accumulated`` if the coordinator accepts it."""
        nonlocal fetched
        with rank.session.journal.step(rank.session.inputs.epoch(order.number - 1), order.length) as outcome:
            if fetched != order.number:
                await fetch(rank.comm, rank.parts(replica.parameters))
                fetched = order.number
            inputs = partial(rank.session.inputs.load, order.batch, order.portion, rank.portions)
            await gradient(rank.comm, rank.session, inputs, outcome, scale=1 / rank.session.global_batch)
            loss = outcome.loss * outcome.images
            answer = await rank.report(Report(order.number, order.portion, loss))
            if answer.accepted:
                await rank.comm.add(accumulated, replica.gradients)
                flags[order.portion] = 1
            else:
                outcome.images = outcome.correct = 0
        return answer

    order = await rank.report(Report())
    while order.command is not Command.STOP:
        if order.command is Command.COMPUTE:
            order = await compute(order)
        elif order.command is Command.PUSH:
            await push(rank.comm, rank.parts(accumulated), order.number, flags)
            await rank.comm.apply("reset", partial(assign, accumulated, 0), accumulated.nbytes)
            flags[:] = 0
            order = await rank.report(Report())
        else:
            reached = await rank.test(rank.comm, order, is_worker=is_worker)
            order = await rank.report(Report(target_reached=reached))
    return order


TRAITS: Final = Strategy(
    aggregates=False,
    scales_loss=False,
    splits_layers=True,
    optimizer="L-BFGS",
    least={"servers": 0, "history": 0, "portions_per_worker": 1, "push_every": 1, "search": 1},
    check=check,
    workers=workers,
    may_fail=may_fail,
    most_steps=most_steps,
    cycle=cycle,
)
