"""Sandblaster L-BFGS (Dean et al. 2012, section 4.2): a coordinator without vectors, and servers of shards.

The coordinator sends commands and receives scalars::

    coordinator  -- direction, length, "add", "dot" -->  servers   each applies the operation to its own shard
                 <-- parts of a dot product ------------
    coordinator  -- number of a portion --------------->  workers  fetch x once per batch, accumulate gradients
                 <-- loss of the portion ---------------            push their sum to the servers on command

A batch has several portions per worker. An idle worker gets the next one; near the end of a batch the oldest
unfinished portions are assigned twice, and the first result counts. The one rule: a portion's gradient is counted
once, and a worker pushes only portions that the coordinator has accepted.
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from math import sqrt
from typing import Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from hpcdl.fabric.comm import ANY, Array, Comm, PeerLost
from hpcdl.fabric.vectors import assign
from hpcdl.optim.parts import lbfgs
from hpcdl.optim.parts.lbfgs import Operation, OperationKind, Pair, Program
from hpcdl.training.parts.session import Session

T = TypeVar("T")

REQUEST, ANSWER, PARAMETERS, GRADIENT = range(10, 14)
"""Tags: request to a server; its answer to the coordinator; shard to a worker; gradient to a server."""

WEIGHTS, SLOPE, DIRECTION, TRIAL, SUM, PAIRS = range(6)
"""Numbers of vectors: parameters, their gradient, direction, parameters on trial, their gradient, first pair."""

_BEGIN, _FETCH, _PUSH, _COUNT, _STOP = range(len(OperationKind), len(OperationKind) + 5)
"""Requests besides operations: new sum, parameters on trial, part of the sum, wait for the whole sum, stop."""
_HEAD: Final = 4
"""Length of a request before the flags of a push's portions: request, x or the sum's number, y, a."""

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


MARGIN: Final = 2
"""Workers push after every portion once the rest of the batch takes at most ``MARGIN`` portions of their time."""


class Portions:
    """Assignment of the portions of one batch to workers (Dean et al. 2012, section 4.2).

    An idle worker gets the next portion. When all are assigned, ``backup`` assigns the oldest unfinished portion
    to a second worker, and the first result counts. A worker pushes the sum of its accepted gradients after
    ``push_every`` portions. Near the end it pushes after every portion, so that no rank waits for the sum of a
    slow worker.
    """

    def __init__(self, number: int, *, push_every: int, backup: bool) -> None:
        self._number = number
        self._push_every = push_every
        self._backup = backup
        self._unassigned = deque(range(number))
        self._assigned: dict[int, list[int]] = {}
        """Unfinished portions, the oldest first, and the workers that compute them."""
        self._losses: dict[int, float] = {}
        self._unpushed: dict[int, list[int]] = {}
        self._finished: Counter[int] = Counter()
        self._one_by_one = False

    @property
    def complete(self) -> bool:
        """True when every portion has been accepted and pushed."""
        return len(self._losses) == self._number and not self._unpushed

    @property
    def loss(self) -> float:
        return sum(self._losses[portion] for portion in sorted(self._losses))

    def assign(self, worker: int) -> int | None:
        if self._unassigned:
            portion = self._unassigned.popleft()
            self._assigned[portion] = [worker]
            return portion
        if self._backup:
            for portion, workers in self._assigned.items():
                if len(workers) == 1 and worker not in workers:
                    workers.append(worker)
                    return portion
        return None

    def accept(self, worker: int, portion: int, loss: float) -> bool:
        """Record the result of ``worker`` for ``portion``; return whether it counts.

        It does not if another worker was first, even one that has failed since: see :meth:`lost`.
        """
        self._finished[worker] += 1
        if worker not in self._assigned.get(portion, ()):
            return False
        del self._assigned[portion]
        self._losses[portion] = loss
        self._unpushed.setdefault(worker, []).append(portion)
        return True

    def must_push(self, worker: int) -> bool:
        """Return whether an idle ``worker`` must push its accumulated gradients next."""
        unpushed = len(self._unpushed.get(worker, ()))
        # portions that all workers compute while this one computes a portion
        rate = self._finished.total() / max(1, self._finished[worker])
        near_end = self._one_by_one or len(self._unassigned) <= MARGIN * rate
        return unpushed > 0 and (unpushed >= self._push_every or near_end)

    def pushed(self, worker: int) -> None:
        """Record that ``worker`` has pushed its accumulated gradients to all shards."""
        self._unpushed.pop(worker, None)

    def lost(self, worker: int) -> None:
        """Assign the unpushed and unfinished portions of a failed ``worker`` again.

        Some shards may have received its last push. A shard ignores a push of portions that it has counted.
        Therefore all workers push after every portion from now on.
        """
        self._one_by_one = True
        for portion in self._unpushed.pop(worker, ()):
            del self._losses[portion]
            self._unassigned.append(portion)
        for portion, workers in list(self._assigned.items()):
            if worker in workers:
                workers.remove(worker)
                if not workers:
                    del self._assigned[portion]
                    self._unassigned.append(portion)


class Shard:
    """One server's part of all vectors; ``span``: its elements of the parameters."""

    def __init__(self, session: Session, span: slice, history: int, portions: int) -> None:
        size = span.stop - span.start
        names = ["weights", "gradient", "direction", "trial", "sum"]
        names += [f"{letter}{i}" for i in range(history) for letter in "sy"]
        self.span = span
        self.vectors = [session.vector(name, size) for name in names]
        self.vectors[WEIGHTS][:] = session.replica.parameters[span]
        self._inbox = session.vector("inbox", size)
        self._number = 0
        self._counted = np.zeros(portions, bool)
        self._count_requested = False

    async def serve(self, comm: Comm, coordinator: int) -> None:
        """Serve the coordinator's commands and the workers' requests until the command to stop."""
        request = np.zeros(_HEAD + len(self._counted))
        while True:
            try:
                source = (await comm.recv(request, ANY, REQUEST)).source
                code = request[0]
                if code == _STOP:
                    return
                if code == _FETCH:
                    await comm.send(self.vectors[TRIAL], source, PARAMETERS)
                elif code == _PUSH:
                    await self._add(comm, source, request)
                else:
                    await self._execute(comm, coordinator, request)
                if self._count_requested and self._counted.all():
                    self._count_requested = False
                    await comm.send(np.zeros(1), coordinator, ANSWER)
            except PeerLost as lost:  # a worker; another one computes its portions again
                if lost.rank == coordinator:
                    raise

    async def _add(self, comm: Comm, worker: int, request: NDArray[np.float64]) -> None:
        """Add a worker's gradient of some portions, unless they are counted already or belong to an older sum."""
        number, portions = request[1], request[_HEAD:] > 0
        await comm.recv(self._inbox, worker, GRADIENT)
        if number == self._number and not self._counted[portions].any():
            await comm.add(self.vectors[SUM], self._inbox)
            self._counted |= portions

    async def _execute(self, comm: Comm, coordinator: int, request: NDArray[np.float64]) -> None:
        code, x, y = (int(number) for number in request[:3])
        if code == _COUNT:
            self._count_requested = True
        elif code == _BEGIN:
            self._number = x
            self._counted[:] = False
            total = self.vectors[SUM]
            await comm.apply("reset", partial(assign, total, 0), total.nbytes)
            await comm.send(np.zeros(1), coordinator, ANSWER)
        else:
            operation = Operation(OperationKind(code), x, y, float(request[3]))
            touched = self.vectors[operation.x].nbytes
            value = await comm.apply(
                operation.kind.name.lower(), partial(lbfgs.apply_operation, operation, self.vectors), touched
            )
            if operation.kind is OperationKind.DOT:
                await comm.send(np.array([value]), coordinator, ANSWER)


class Shards:
    """The coordinator's commands to all servers, and their answers."""

    def __init__(self, comm: Comm, servers: Sequence[int]) -> None:
        self._comm = comm
        self.servers = servers

    async def run(self, program: Program[T]) -> T:
        """Let the servers execute ``program``; a dot product is the sum of the servers' results."""
        operation = next(program)
        while True:
            value = await self.do(operation)
            try:
                operation = program.send(value)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]

    async def do(self, *operations: Operation) -> float:
        """Let the servers execute some operations; return the value of the last one."""
        value = 0.0
        for operation in operations:
            await self._request(*operation)
            value = await self._answers() if operation.kind is OperationKind.DOT else 0.0
        return value

    async def begin(self, number: int) -> None:
        """Begin sum ``number``; on return all earlier commands are complete, and workers may send requests."""
        await self._request(_BEGIN, number)
        await self._answers()

    async def counted(self) -> None:
        """Wait until the sum contains every portion on every server, and all earlier commands are complete."""
        await self._request(_COUNT)
        await self._answers()

    async def stop(self) -> None:
        await self._request(_STOP)

    async def _request(self, code: int, x: int = 0, y: int = 0, a: float = 0.0) -> None:
        for server in self.servers:
            await self._comm.send(np.array([code, x, y, a], float), server, REQUEST)

    async def _answers(self) -> float:
        """Return the sum of the servers' answers, added in the order of the servers."""
        answer, total = np.zeros(1), 0.0
        for server in self.servers:
            await self._comm.recv(answer, server, ANSWER)
            total += float(answer[0])
        return total


async def fetch(comm: Comm, parts: Sequence[tuple[int, Array]]) -> None:
    """Receive the parameters on trial; ``parts`` are (server, buffer of its part)."""
    for server, part in parts:
        await comm.send(np.array([_FETCH, 0, 0, 0], float), server, REQUEST)
        await comm.recv(part, server, PARAMETERS)


async def push(comm: Comm, parts: Sequence[tuple[int, Array]], number: int, portions: Array) -> None:
    """Send a worker's gradient of ``portions`` (a flag for each) for the sum ``number``."""
    request = np.concatenate([[_PUSH, number, 0, 0], portions])
    for server, part in parts:
        await comm.send(request, server, REQUEST)
        await comm.send(part, server, GRADIENT)


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
        await shards.run(lbfgs.two_loop(SLOPE, DIRECTION, self._pairs))
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
        search = lbfgs.strong_wolfe(loss, slope, first, most)
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
        pair = await self._shards.run(lbfgs.curvature_pair(SLOPE, SUM, DIRECTION, length))
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
