"""Sandblaster's coordinator, which knows scalars only, and what it and the other ranks say to each other."""

from __future__ import annotations

from collections import deque
from enum import IntEnum
from math import sqrt
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hpcdl.fabric.comm import ANY, PeerLost
from hpcdl.optim.lbfgs import Kind, Operation, difference, two_loop
from hpcdl.optim.line_search import strong_wolfe
from hpcdl.training.coordination.portions import Portions
from hpcdl.training.coordination.vector_shards import DIRECTION, PAIRS, SLOPE, SUM, TRIAL, WEIGHTS, Shards

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hpcdl.fabric.comm import Comm
    from hpcdl.optim.lbfgs import Pair
    from hpcdl.training.session import Session

ORDER, REPORT = range(2)
"""Tags: from the coordinator, and to it."""


class Report(NamedTuple):
    """What a rank says when it waits for an order."""

    number: int = 0
    """The gradient that the portion belongs to; the first of the training is 1."""
    portion: int = -1
    """The one computed, -1 if the last order was another."""
    loss: float = 0.0
    """Its images' sum."""
    enough: bool = False
    """Whether a test has shown that training may stop."""


class What(IntEnum):
    """What a rank is told to do."""

    STOP = 0
    """And test, if ``number`` is not 0."""
    TEST = 1
    PUSH = 2
    COMPUTE = 3


class Order(NamedTuple):
    """What a rank is told."""

    what: What
    accepted: bool = False
    """Whether the portion just reported counts."""
    number: int = 0
    """To compute: the gradient that the portion belongs to; to test: how many there have been."""
    batch: int = 0
    portion: int = 0
    length: float = 0.0
    """To compute: how far along the direction the parameters are that are tried."""
    training_ns: float = 0.0
    """To test: how long training has taken, without waiting for those who are late with what does not count."""


class LbfgsCoordinator:
    """Minimises the training loss by L-BFGS, with workers' gradients and servers' vectors.

    ``book()`` makes the book of one gradient's portions. The ranks in ``workers`` get portions, all ranks tests.
    """

    def __init__(
        self,
        comm: Comm,
        session: Session,
        *,
        workers: Sequence[int],
        servers: Sequence[int],
        book: Callable[[], Portions],
    ) -> None:
        self._comm = comm
        self._session = session
        self._workers = set(workers)
        self._shards = Shards(comm, servers)
        self._new_book = book
        self._book = Portions(0, push_every=1, backup=False)
        self._here = set(range(comm.size))
        self._idle: set[int] = set()
        """Who waits for an order."""
        self._number = 0
        self._batch = 0
        self._length = 0.0
        self._tested_ns = 0
        """In tests, and waiting for them."""
        self._enough = False
        self._whole = len(session.dataset.train) - session.global_batch < comm.size
        """Whether the batch is all the data, but for what the ranks do not divide; then it stays the same."""
        self._loss: float | None = None
        """At the parameters, None if it and the gradient there are not known for the batch."""
        self._pairs: deque[Pair] = deque()
        self._free: deque[tuple[int, int]] = deque()
        """Numbers of vectors for pairs to come."""

    async def minimise(self, history: int, search: int) -> None:
        """Train, keeping ``history`` pairs and trying ``search`` lengths at most, then stop everybody."""
        self._free.extend((PAIRS + 2 * i, PAIRS + 2 * i + 1) for i in range(history))
        steps, going = self._session.steps, True
        while going and self._number < steps:
            going = await self._iterate(search)
            last = not going or self._number == steps
            # with somebody dead only the survivors can test, when all else is over
            if self._session.evaluation_due(self._number) and not last and len(self._here) == self._comm.size:
                await self._test()
                going = not self._enough
        ending = self._to_test(What.STOP)._replace(number=0 if self._enough else self._number)
        await self._all_idle()
        await self._shards.stop()
        for rank in sorted(self._here):
            await self._tell(rank, ending)

    async def _iterate(self, search: int) -> bool:
        """Make one iteration; tells whether there may be another."""
        shards, steps = self._shards, self._session.steps
        if self._loss is None:
            await shards.do(Operation(Kind.COPY, WEIGHTS, TRIAL))
            self._loss = await self._gradient(0.0)
            await shards.do(Operation(Kind.COPY, SUM, SLOPE))
            if self._number == steps:
                return False
        await shards.run(two_loop(SLOPE, DIRECTION, self._pairs))
        slope = await shards.do(Operation(Kind.DOT, SLOPE, DIRECTION))
        if not slope < 0:
            return self._give_up()
        first = self._session.learning_rate(self._number)
        if not self._pairs:
            first *= min(1.0, 1 / sqrt(-slope))
        length, tried, loss = await self._search(self._loss, slope, first, min(search, steps - self._number))
        if length == 0:
            return self._give_up()
        await shards.do(Operation(Kind.AXPY, DIRECTION, WEIGHTS, length))
        known = length == tried  # else the gradient summed last is another point's
        if known:
            await self._remember(length)
        self._loss = loss if known and self._whole else None
        if self._loss is not None:
            await shards.do(Operation(Kind.COPY, SUM, SLOPE))
        self._batch += not self._whole
        return True

    def _give_up(self) -> bool:
        """Without a lower loss in sight, forget the pairs, or go to the next batch; without either, it is over."""
        there_may_be = bool(self._pairs) or not self._whole
        self._free.extend((pair.s, pair.y) for pair in self._pairs)
        self._pairs.clear()
        if not self._whole:
            self._loss = None
            self._batch += 1
        return there_may_be

    async def _search(self, loss: float, slope: float, first: float, most: int) -> tuple[float, float, float]:
        """Return how far to go, the length tried last, and the loss there."""
        search = strong_wolfe(loss, slope, first, most)
        length = next(search)
        while True:
            await self._shards.do(
                Operation(Kind.COPY, WEIGHTS, TRIAL), Operation(Kind.AXPY, DIRECTION, TRIAL, length)
            )
            loss = await self._gradient(length)
            slope = await self._shards.do(Operation(Kind.DOT, SUM, DIRECTION))
            try:
                length = search.send((loss, slope))
            except StopIteration as stop:
                return stop.value, length, loss

    async def _remember(self, length: float) -> None:
        """Keep the step along the direction and the change of the gradient, if need be in the oldest pair's place.

        Direction and slope, which have done their service, are made into them.
        """
        if not (self._free or self._pairs):
            return
        pair = await self._shards.run(difference(SLOPE, SUM, DIRECTION, length))
        if pair is None:
            return
        if not self._free:
            oldest = self._pairs.popleft()
            self._free.append((oldest.s, oldest.y))
        s, y = self._free.popleft()
        await self._shards.do(Operation(Kind.COPY, pair.s, s), Operation(Kind.COPY, pair.y, y))
        self._pairs.append(pair._replace(s=s, y=y))

    async def _gradient(self, length: float) -> float:
        """Have the gradient at the parameters tried summed by the servers; return the mean loss there."""
        self._number += 1
        self._length = length
        await self._shards.begin(self._number)
        self._book = self._new_book()
        await self._offer()
        while not self._book.settled:
            await self._hear()
        await self._shards.counted()
        return self._book.loss / self._session.global_batch

    async def _hear(self) -> None:
        """Take one report and answer it, now or when there is something to do."""
        words = np.zeros(len(Report._fields))
        try:
            worker = (await self._comm.recv(words, ANY, REPORT)).source
        except PeerLost as lost:
            await self._lose(lost.rank)
            return
        number, portion, loss, enough = words
        accepted = False
        if portion < 0:
            self._book.pushed(worker)
            self._enough |= bool(enough)
        elif number == self._number:
            accepted = self._book.answer(worker, int(portion), float(loss))
        self._idle.add(worker)
        await self._direct(worker, accepted=accepted)

    async def _direct(self, worker: int, *, accepted: bool = False) -> None:
        """Tell an idle rank what to do if there is something; there is for one whose portion was accepted."""
        if self._book.must_push(worker):
            await self._tell(worker, Order(What.PUSH, accepted, self._number))
        elif worker in self._workers and (portion := self._book.hand_out(worker)) is not None:
            order = Order(What.COMPUTE, accepted, self._number, self._batch, portion, self._length)
            await self._tell(worker, order)

    async def _offer(self) -> None:
        for worker in sorted(self._idle):
            if worker in self._idle:  # others may die meanwhile
                await self._direct(worker)

    async def _tell(self, rank: int, order: Order) -> None:
        self._idle.discard(rank)
        try:
            await self._comm.send(np.array(order, float), rank, ORDER)
        except PeerLost:
            await self._lose(rank)

    async def _lose(self, rank: int) -> None:
        """Go on without ``rank``: what it had goes to others. Raises PeerLost where nobody can do its work."""
        if rank not in self._here:
            return
        self._here.discard(rank)
        self._idle.discard(rank)
        self._workers.discard(rank)
        if not self._workers or self._shards.has(rank):
            raise PeerLost(rank, "a shard, or the last worker")
        self._book.lost(rank)
        await self._offer()

    async def _all_idle(self) -> None:
        while self._idle != self._here:
            await self._hear()

    async def _test(self) -> None:
        """Have all ranks test the parameters together: a collective, so nobody may be at anything else."""
        order = self._to_test(What.TEST)
        await self._all_idle()
        for rank in sorted(self._idle, reverse=True):  # this one last, for it stands still then
            await self._tell(rank, order)
        await self._all_idle()
        self._tested_ns = self._session.journal.moment().training_ns - int(order.training_ns)

    def _to_test(self, what: What) -> Order:
        now = self._session.journal.moment().training_ns
        return Order(what, number=self._number, training_ns=now - self._tested_ns)
