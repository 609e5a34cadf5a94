"""Vectors sharded over servers: a server's shard, and the coordinator's commands to all shards."""

from collections import Counter, deque
from collections.abc import Sequence
from functools import partial
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from hpcdl.fabric.comm import ANY, Array, Comm, PeerLost
from hpcdl.fabric.vectors import assign
from hpcdl.optim.parts.lbfgs import Operation, OperationKind, Program, apply_operation
from hpcdl.training.parts.session import Session

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


T = TypeVar("T")

REQUEST, ANSWER, PARAMETERS, GRADIENT = range(10, 14)
"""Tags: request to a server; its answer to the coordinator; shard to a worker; gradient to a server."""

WEIGHTS, SLOPE, DIRECTION, TRIAL, SUM, PAIRS = range(6)
"""Numbers of vectors: parameters, their gradient, direction, parameters on trial, their gradient, first pair."""

_BEGIN, _FETCH, _PUSH, _COUNT, _STOP = range(len(OperationKind), len(OperationKind) + 5)
"""Requests besides operations: new sum, parameters on trial, part of the sum, wait for the whole sum, stop."""
_HEAD: Final = 4
"""Length of a request before the flags of a push's portions: request, x or the sum's number, y, a."""


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
                operation.kind.name.lower(), partial(apply_operation, operation, self.vectors), touched
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
