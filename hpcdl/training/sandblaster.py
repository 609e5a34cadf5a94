from __future__ import annotations

from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcdl.fabric.comm import partition
from hpcdl.training.backpropagation import gradient
from hpcdl.training.coordination.coordinator import ORDER, REPORT, LbfgsCoordinator, Order, Report, What
from hpcdl.training.coordination.portions import Portions
from hpcdl.training.coordination.vector_shards import WEIGHTS, Shard, fetch, push
from hpcdl.training.journal import Moment
from hpcdl.training.running_statistics import share_statistics

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcdl.fabric.comm import Array, Comm
    from hpcdl.training.session import Session

AGGREGATES = False
SCALES_LOSS = False
OPTIMIZER = "L-BFGS"
COORDINATOR = 0
"""Its rank."""


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
    """L-BFGS by a coordinator that holds no parameters (Sandblaster; Dean et al. 2012, section 4.2).

    A batch is cut into portions, ``portions_per_worker`` for each, that free workers take; a worker fetches the
    parameters once for each gradient of the batch, adds up its portions' gradients and sends the sum now and then,
    after ``push_every`` portions at the latest. At the end portions that are out are handed out twice
    (``backup``). The two-loop recursion over ``history`` pairs, the line search (strong Wolfe, at most
    ``search`` trials) and the update are done by the servers on their shards at the coordinator's command.

    With ``servers`` = 0 every rank is a worker and holds a shard, and rank 0 coordinates as well. Otherwise rank 0
    coordinates, the next ``servers`` ranks hold shards, and the others work.

    A step is one gradient of the global batch, whether the line search takes it or not, so that as many steps
    are as many gradient evaluations as SGD's. Where the batch is all the data, but for what the ranks do not
    divide, one gradient serves as the end of an iteration and the beginning of the next. A smaller one changes
    after each iteration; both gradients of a pair come from the same batch (Schraudolph, Yu and Guenter 2007),
    which costs one more evaluation. What backup tasks compute in vain is not counted. The case's optimizer is
    not asked, and there is no weight decay. The learning rate is the first length that the search tries; 1 is
    usual. Where a worker dies others compute what it had and had not sent; where a rank with a shard dies,
    PeerLost is raised.

    Memory: each shard of n parameters keeps 6 + 2 history vectors of its length, a worker one of n for its sum.
    """
    if session.replica.loss_scale != 1:
        raise ValueError("sandblaster holds losses against gradients, and cannot scale them as float16 needs it")
    session.prefetch = 0  # which portion comes next is not known ahead
    holders, workers = _roles(comm.size, servers)
    portions = min(portions_per_worker * len(workers), session.global_batch)
    seat = _Seat(comm, session, holders, portions)
    session.journal.begin()
    beside = []
    if comm.rank == COORDINATOR:
        book = partial(Portions, portions, push_every=push_every, backup=backup)
        coordinator = LbfgsCoordinator(comm, session, workers=workers, servers=holders, book=book)
        beside.append(comm.start(coordinator.minimise(history, search), shared_tags=True))
    if comm.rank in holders:
        seat.shard = Shard(session, seat.spans[comm.rank], history, portions)
        beside.append(comm.start(seat.shard.serve(comm, COORDINATOR), shared_tags=True))
    is_worker = comm.rank in workers
    last = await (work(seat) if is_worker else attend(seat))
    for program in beside:
        await program
    if last.number:
        await seat.test(await comm.survivors(), last, is_worker=is_worker)


def check(ranks: int, settings: Mapping[str, Any]) -> None:
    """Raise ValueError for settings that cannot run on so many ranks."""
    least = {"servers": 0, "history": 0, "portions_per_worker": 1, "push_every": 1, "search": 1}
    for name, bound in least.items():
        if settings[name] < bound:
            raise ValueError(f"{name}: must be at least {bound}, not {settings[name]}")
    servers = settings["servers"]
    if servers and ranks < servers + 2:
        raise ValueError(f"servers: {servers} of them, a coordinator and a worker need more than {ranks} ranks")


def workers(ranks: int, settings: Mapping[str, Any]) -> range:
    """Return who computes gradients."""
    return _roles(ranks, settings["servers"])[1]


def mortal(ranks: int, settings: Mapping[str, Any]) -> range:
    """Return who may die: a worker that keeps no shard, if there is another one."""
    able = workers(ranks, settings)
    return able if settings["servers"] and len(able) > 1 else range(0)


def most_steps(ranks: int, settings: Mapping[str, Any]) -> int:
    """Return how many steps one worker can take of a global batch: a portion each."""
    return int(settings["portions_per_worker"]) * len(workers(ranks, settings))


def _roles(ranks: int, servers: int) -> tuple[range, range]:
    """Who holds shards, and who works."""
    if servers == 0:
        return range(ranks), range(ranks)
    return range(1, 1 + servers), range(1 + servers, ranks)


class _Seat:
    """What every rank can do: report for an order, and test."""

    def __init__(self, comm: Comm, session: Session, holders: range, portions: int) -> None:
        self.comm = comm
        self.session = session
        self.portions = portions
        self.shard: Shard | None = None
        sizes = map(len, partition(session.replica.parameters, len(holders)))
        bounds = pairwise(accumulate(sizes, initial=0))
        self.spans = {holder: slice(*span) for holder, span in zip(holders, bounds, strict=True)}
        """Who holds which elements of the parameters."""

    def parts(self, vector: Array) -> list[tuple[int, Array]]:
        """Of a vector as long as the parameters: (server, its part)."""
        return [(server, vector[span]) for server, span in self.spans.items()]

    async def report(self, report: Report) -> Order:
        """Tell the coordinator what has been done, and wait for what to do next."""
        words = np.zeros(len(Order._fields))
        await self.comm.send(np.array(report, float), COORDINATOR, REPORT)
        await self.comm.recv(words, COORDINATOR, ORDER)
        what, accepted, number, batch, portion = (int(word) for word in words[:5])
        return Order(What(what), bool(accepted), number, batch, portion, *map(float, words[5:]))

    async def test(self, comm: Comm, order: Order, *, is_worker: bool) -> bool:
        """Put the parameters together and test them, on all ranks; tells whether training may stop."""
        replica = self.session.replica
        replica.parameters[:] = 0
        if self.shard is not None:
            replica.parameters[self.shard.span] = self.shard.vectors[WEIGHTS]
        await comm.native("allreduce", replica.parameters)
        await share_statistics(comm, self.session, worked=is_worker)
        return await self.session.evaluate(comm, order.number, at=Moment(order.number, int(order.training_ns)))


async def attend(seat: _Seat) -> Order:
    """Test with the others when told to; returns the order to stop."""
    report = Report()
    while (order := await seat.report(report)).what is not What.STOP:
        report = Report(enough=await seat.test(seat.comm, order, is_worker=False))
    return order


async def work(seat: _Seat) -> Order:
    """Compute one portion after another, test with the others when told to; returns the order to stop."""
    replica = seat.session.replica
    gathered = seat.session.vector("gathered")
    flags = np.zeros(seat.portions)
    fetched = 0

    async def compute(order: Order) -> Order:
        """Compute a portion's gradient, and gather it if it counts."""
        nonlocal fetched
        with seat.session.journal.step(seat.session.epoch(order.number - 1), order.length) as outcome:
            if fetched != order.number:
                await fetch(seat.comm, seat.parts(replica.parameters))
                fetched = order.number
            inputs = partial(seat.session.input, order.batch, order.portion, seat.portions)
            await gradient(seat.comm, seat.session, inputs, outcome, scale=1 / seat.session.global_batch)
            loss = outcome.loss * outcome.images
            answer = await seat.report(Report(order.number, order.portion, loss))
            if answer.accepted:
                await seat.comm.add(gathered, replica.gradients)
                flags[order.portion] = 1
            else:
                outcome.images = outcome.correct = 0
        return answer

    order = await seat.report(Report())
    while order.what is not What.STOP:
        if order.what is What.COMPUTE:
            order = await compute(order)
        elif order.what is What.PUSH:
            await push(seat.comm, seat.parts(gathered), order.number, flags)
            gathered[:] = 0
            flags[:] = 0
            order = await seat.report(Report())
        else:
            order = await seat.report(Report(enough=await seat.test(seat.comm, order, is_worker=True)))
    return order
