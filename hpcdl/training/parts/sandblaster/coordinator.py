"""Sandblaster's coordinator, which holds no vectors, and its messages to and from all ranks."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from math import sqrt
from typing import Final, NamedTuple

import numpy as np

from hpcdl.fabric.comm import ANY, Comm, PeerLost
from hpcdl.optim.parts.lbfgs import Operation, OperationKind, Pair, curvature_pair, strong_wolfe, two_loop
from hpcdl.training.parts.sandblaster.vector_shards import (
    DIRECTION,
    PAIRS,
    SLOPE,
    SUM,
    TRIAL,
    WEIGHTS,
    Portions,
    Shards,
)
from hpcdl.training.parts.session import Session

LEAVES_OUT: Final = 100
"""A batch counts as all the data if it leaves out less than 1/100 of the images: workers must divide the batch."""

ORDER, REPORT = range(2)
"""Tags of messages from and to the coordinator."""


class Report(NamedTuple):
    """Message of a rank that waits for an order."""

    number: int = 0
    """Number of the gradient of the portion; the first of the training is 1."""
    portion: int = -1
    """The portion computed; -1 after another order."""
    loss: float = 0.0
    """Sum of the losses of the portion's images."""
    target_reached: bool = False
    """True if a test has shown that training may stop."""


class Command(IntEnum):
    """Command to a rank."""

    STOP = 0
    """Stop; if ``number`` is not 0, test first."""
    TEST = 1
    PUSH = 2
    COMPUTE = 3


class Order(NamedTuple):
    """Message of the coordinator to a rank."""

    command: Command
    accepted: bool = False
    """True if the portion just reported counts."""
    number: int = 0
    """COMPUTE: number of the gradient of the portion. TEST: number of gradients so far."""
    batch: int = 0
    portion: int = 0
    length: float = 0.0
    """COMPUTE: length along the direction of the parameters on trial."""
    training_ns: float = 0.0
    """TEST: training time, without waiting for late portions that do not count."""


@dataclass(eq=False)
class LbfgsCoordinator:
    """Minimise the training loss by L-BFGS, with workers' gradients and servers' vectors.

    ``new_portions()`` returns the portions of one gradient. ``replicas`` are ranks that report and get orders, the
    first one of each replica. Those in ``workers`` compute; all test. ``servers`` are those of all parts.
    """

    comm: Comm
    session: Session
    replicas: Sequence[int]
    workers: Sequence[int]
    servers: Sequence[int]
    new_portions: Callable[[], Portions]

    def __post_init__(self) -> None:
        self._workers = set(self.workers)
        self._shards = Shards(self.comm, self.servers)
        self._portions = Portions(0, push_every=1, backup=False)
        self._running = set(self.replicas)
        self._idle: set[int] = set()
        self._number = 0
        self._batch = 0
        self._length = 0.0
        self._tested_ns = 0
        """Time in tests, including the wait for them."""
        self._target_reached = False
        images = len(self.session.inputs.dataset.train)
        self._whole = LEAVES_OUT * (images - self.session.global_batch) < images
        """True if the batch is all the data; it does not change then."""
        self._loss: float | None = None
        """Loss at the parameters; None if loss and gradient are unknown for the present batch."""
        self._pairs: deque[Pair] = deque()
        self._free: deque[tuple[int, int]] = deque()
        """Numbers of unused vectors for pairs."""

    async def minimise(self, history: int, search: int) -> None:
        """Train with ``history`` pairs and at most ``search`` trials per line search, then stop all ranks."""
        self._free.extend((PAIRS + 2 * i, PAIRS + 2 * i + 1) for i in range(history))
        steps, going = self.session.steps, True
        while going and self._number < steps:
            going = await self._iterate(search)
            last = not going or self._number == steps
            # after a failure the survivors test only at the end
            due = self.session.evaluation.due(self._number)
            if due and not last and len(self._running) == len(self.replicas):
                await self._test()
                going = not self._target_reached
        ending = self._test_order(Command.STOP)._replace(number=0 if self._target_reached else self._number)
        await self._all_idle()
        await self._shards.stop()
        for rank in sorted(self._running):
            await self._send_order(rank, ending)

    async def _iterate(self, search: int) -> bool:
        """Make one iteration; return whether another one may follow."""
        shards, steps = self._shards, self.session.steps
        if self._loss is None:
            await shards.do(Operation(OperationKind.COPY, WEIGHTS, TRIAL))
            self._loss = await self._gradient(0.0)
            await shards.do(Operation(OperationKind.COPY, SUM, SLOPE))
            if self._number == steps:
                return False
        await shards.run(two_loop(SLOPE, DIRECTION, self._pairs))
        slope = await shards.do(Operation(OperationKind.DOT, SLOPE, DIRECTION))
        if not slope < 0:
            return self._restart()
        first = self.session.learning_rate(self._number)
        if not self._pairs:
            first *= min(1.0, 1 / sqrt(-slope))
        length, tried, loss = await self._search(self._loss, slope, first, min(search, steps - self._number))
        if length == 0:
            return self._restart()
        await shards.do(Operation(OperationKind.AXPY, DIRECTION, WEIGHTS, length))
        known = length == tried  # else the last gradient belongs to another point
        if known:
            await self._remember(length)
        self._loss = loss if known and self._whole else None
        if self._loss is not None:
            await shards.do(Operation(OperationKind.COPY, SUM, SLOPE))
        self._batch += not self._whole
        return True

    def _restart(self) -> bool:
        """Drop the pairs and go to the next batch, if there is one; return whether this changes anything."""
        changed = bool(self._pairs) or not self._whole
        self._free.extend((pair.s, pair.y) for pair in self._pairs)
        self._pairs.clear()
        if not self._whole:
            self._loss = None
            self._batch += 1
        return changed

    async def _search(self, loss: float, slope: float, first: float, most: int) -> tuple[float, float, float]:
        """Return the accepted length, the length tried last, and the loss there."""
        search = strong_wolfe(loss, slope, first, most)
        length = next(search)
        while True:
            await self._shards.do(
                Operation(OperationKind.COPY, WEIGHTS, TRIAL),
                Operation(OperationKind.AXPY, DIRECTION, TRIAL, length),
            )
            loss = await self._gradient(length)
            slope = await self._shards.do(Operation(OperationKind.DOT, SUM, DIRECTION))
            try:
                length = search.send((loss, slope))
            except StopIteration as stop:
                return stop.value, length, loss

    async def _remember(self, length: float) -> None:
        """Store the pair of step and gradient change; without free vectors it replaces the oldest pair.

        The pair is computed in place, in the vectors of direction and slope.
        """
        if not (self._free or self._pairs):
            return
        pair = await self._shards.run(curvature_pair(SLOPE, SUM, DIRECTION, length))
        if pair is None:
            return
        if not self._free:
            oldest = self._pairs.popleft()
            self._free.append((oldest.s, oldest.y))
        s, y = self._free.popleft()
        await self._shards.do(Operation(OperationKind.COPY, pair.s, s), Operation(OperationKind.COPY, pair.y, y))
        self._pairs.append(pair._replace(s=s, y=y))

    async def _gradient(self, length: float) -> float:
        """Let workers and servers compute the gradient at the parameters on trial; return the mean loss there."""
        self._number += 1
        self._length = length
        await self._shards.begin(self._number)
        self._portions = self.new_portions()
        await self._order_idle()
        while not self._portions.complete:
            await self._receive_report()
        await self._shards.counted()
        return self._portions.loss / self.session.global_batch

    async def _receive_report(self) -> None:
        words = np.zeros(len(Report._fields))
        try:
            worker = (await self.comm.recv(words, ANY, REPORT)).source
        except PeerLost as lost:
            await self._remove(lost.rank)
            return
        number, portion, loss, target_reached = words
        accepted = False
        if portion < 0:
            self._portions.pushed(worker)
            self._target_reached |= bool(target_reached)
        elif number == self._number:
            accepted = self._portions.accept(worker, int(portion), float(loss))
        self._idle.add(worker)
        await self._order(worker, accepted=accepted)

    async def _order(self, worker: int, *, accepted: bool = False) -> None:
        """Order an idle worker to push or to compute, if needed; always needed after an accepted portion."""
        if self._portions.must_push(worker):
            await self._send_order(worker, Order(Command.PUSH, accepted, self._number))
        elif worker in self._workers and (portion := self._portions.assign(worker)) is not None:
            order = Order(Command.COMPUTE, accepted, self._number, self._batch, portion, self._length)
            await self._send_order(worker, order)

    async def _order_idle(self) -> None:
        for worker in sorted(self._idle):
            if worker in self._idle:  # others may fail meanwhile
                await self._order(worker)

    async def _send_order(self, rank: int, order: Order) -> None:
        self._idle.discard(rank)
        try:
            await self.comm.send(np.array(order, float), rank, ORDER)
        except PeerLost:
            await self._remove(rank)

    async def _remove(self, rank: int) -> None:
        if rank not in self._running:
            return
        self._running.discard(rank)
        self._idle.discard(rank)
        self._workers.discard(rank)
        if not self._workers or rank in self._shards.servers:
            raise PeerLost(rank, "a shard, or the last worker")
        self._portions.lost(rank)
        await self._order_idle()

    async def _all_idle(self) -> None:
        while self._idle != self._running:
            await self._receive_report()

    async def _test(self) -> None:
        """Let all ranks test the parameters: a collective operation, so all ranks must be idle before."""
        order = self._test_order(Command.TEST)
        await self._all_idle()
        await self._shards.counted()  # else a shard could be read before its last command
        for rank in sorted(self._idle, reverse=True):  # this rank last: the test stops its coordinator
            await self._send_order(rank, order)
        await self._all_idle()
        self._tested_ns = self.session.journal.moment().training_ns - int(order.training_ns)

    def _test_order(self, command: Command) -> Order:
        now = self.session.journal.moment().training_ns
        return Order(command, number=self._number, training_ns=now - self._tested_ns)
