"""Vectors cut over servers: their side, which holds the numbers, and the side that commands unseeing."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np

from hpcdl.fabric.comm import ANY, PeerLost
from hpcdl.optim.lbfgs import Kind, Operation, apply

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from hpcdl.fabric.comm import Array, Comm
    from hpcdl.optim.lbfgs import Program
    from hpcdl.training.session import Session

T = TypeVar("T")

REQUEST, ANSWER, PARAMETERS, GRADIENT = range(10, 14)
"""Tags: to a server; its answer to the coordinator; from a server to a worker; from a worker to a server."""

WEIGHTS, SLOPE, DIRECTION, TRIAL, SUM, PAIRS = range(6)
"""Parameters, their gradient, the direction, the parameters tried, the gradient summed there; then the pairs."""


_BEGIN, _FETCH, _PUSH, _COUNT, _STOP = range(len(Kind), len(Kind) + 5)
"""Asked of a server besides operations: a new sum, the parameters tried, a part of the sum, its end, to stop."""

_HEAD: Final = 4
"""Numbers of a request before the portions that a push holds: what, x or the sum's number, y, a."""


class Shard:
    """One server's part of all vectors, ``span`` of the parameters' elements."""

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
        self._asked = False

    async def serve(self, comm: Comm, coordinator: int) -> None:
        """Do what the coordinator commands and workers ask, until told to stop."""
        request = np.zeros(_HEAD + len(self._counted))
        while True:
            try:
                source = (await comm.recv(request, ANY, REQUEST)).source
                what = request[0]
                if what == _STOP:
                    return
                if what == _FETCH:
                    await comm.send(self.vectors[TRIAL], source, PARAMETERS)
                elif what == _PUSH:
                    await self._add(comm, source, request)
                else:
                    await self._obey(comm, coordinator, request)
                if self._asked and self._counted.all():
                    self._asked = False
                    await comm.send(np.zeros(1), coordinator, ANSWER)
            except PeerLost as lost:  # a worker; what it was about to send is computed again by another
                if lost.rank == coordinator:
                    raise

    async def _add(self, comm: Comm, worker: int, request: NDArray[np.float64]) -> None:
        """Add a worker's gradient of some portions, unless they have been counted or belong to an older sum."""
        number, portions = request[1], request[_HEAD:] > 0
        await comm.recv(self._inbox, worker, GRADIENT)
        if number == self._number and not self._counted[portions].any():
            await comm.add(self.vectors[SUM], self._inbox)
            self._counted |= portions

    async def _obey(self, comm: Comm, coordinator: int, request: NDArray[np.float64]) -> None:
        what, x, y = (int(number) for number in request[:3])
        if what == _COUNT:
            self._asked = True
        elif what == _BEGIN:
            self._number = x
            self._counted[:] = False
            self.vectors[SUM][:] = 0
            await comm.send(np.zeros(1), coordinator, ANSWER)
        else:
            operation = Operation(Kind(what), x, y, float(request[3]))
            value = await comm.compute(operation.kind.name.lower(), partial(apply, operation, self.vectors))
            if operation.kind is Kind.DOT:
                await comm.send(np.array([value]), coordinator, ANSWER)


class Shards:
    """The coordinator's side: commands to all servers, answers from all."""

    def __init__(self, comm: Comm, servers: Sequence[int]) -> None:
        self._comm = comm
        self._servers = servers

    def has(self, rank: int) -> bool:
        """Whether ``rank`` holds a shard."""
        return rank in self._servers

    async def run(self, program: Program[T]) -> T:
        """Let the servers do what ``program`` asks for; a dot product is the sum of theirs."""
        operation = next(program)
        while True:
            value = await self.do(operation)
            try:
                operation = program.send(value)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]

    async def do(self, *operations: Operation) -> float:
        """Let the servers do some operations; return the value of the last one."""
        value = 0.0
        for operation in operations:
            await self._tell(*operation)
            value = await self._answers() if operation.kind is Kind.DOT else 0.0
        return value

    async def begin(self, number: int) -> None:
        """Begin sum ``number``; on return every server has done what it was told, so that workers may ask it."""
        await self._tell(_BEGIN, number)
        await self._answers()

    async def counted(self) -> None:
        """Wait until the sum holds every portion on every server."""
        await self._tell(_COUNT)
        await self._answers()

    async def stop(self) -> None:
        """End the servers."""
        await self._tell(_STOP)

    async def _tell(self, what: int, x: int = 0, y: int = 0, a: float = 0.0) -> None:
        for server in self._servers:
            await self._comm.send(np.array([what, x, y, a], float), server, REQUEST)

    async def _answers(self) -> float:
        """The sum of the servers' answers, in their order whatever the order in which they come."""
        answer, total = np.zeros(1), 0.0
        for server in self._servers:
            await self._comm.recv(answer, server, ANSWER)
            total += float(answer[0])
        return total


async def fetch(comm: Comm, parts: Sequence[tuple[int, Array]]) -> None:
    """Get the parameters to be tried; ``parts`` are (server, where its part goes); workers begin apart."""
    for server, part in _from(comm.rank, parts):
        await comm.send(np.array([_FETCH, 0, 0, 0], float), server, REQUEST)
        await comm.recv(part, server, PARAMETERS)


async def push(comm: Comm, parts: Sequence[tuple[int, Array]], number: int, portions: Array) -> None:
    """Send a worker's gradient of ``portions`` (a flag for each) for the sum ``number``."""
    request = np.concatenate([[_PUSH, number, 0, 0], portions])
    for server, part in _from(comm.rank, parts):
        await comm.send(request, server, REQUEST)
        await comm.send(part, server, GRADIENT)


def _from(rank: int, parts: Sequence[tuple[int, Array]]) -> Sequence[tuple[int, Array]]:
    begin = rank % len(parts)
    return [*parts[begin:], *parts[:begin]]
