"""A communicator that forwards every operation to another one; subclasses change some of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from hpcdl.fabric.comm import ANY, Array, Comm, Memory, Status
from hpcdl.fabric.task import Program, Task

T = TypeVar("T")
C = TypeVar("C", bound=Comm)


class Wrapper(ABC, Generic[C]):
    """A :class:`hpcdl.fabric.comm.Comm` over another one, as are the communicators that are made from it."""

    def __init__(self, comm: C) -> None:
        self._comm = comm

    @abstractmethod
    def _wrap(self, comm: Any) -> Comm:
        """Wrap a communicator that the wrapped one has made."""

    @property
    def rank(self) -> int:
        return self._comm.rank

    @property
    def size(self) -> int:
        return self._comm.size

    @property
    def memory(self) -> Memory:
        return self._comm.memory

    async def send(self, buffer: Array, dest: int, tag: int = 0) -> None:
        await self._comm.send(buffer, dest, tag)

    async def recv(self, buffer: Array, source: int = ANY, tag: int = ANY) -> Status:
        return await self._comm.recv(buffer, source, tag)

    async def exchange(self, outgoing: Array, dest: int, incoming: Array, source: int, tag: int = 0) -> Status:
        return await self._comm.exchange(outgoing, dest, incoming, source, tag)

    async def apply(self, label: str, work: Callable[[], T], touched_bytes: int) -> T:
        return await self._comm.apply(label, work, touched_bytes)

    async def add(self, into: Array, addend: Array) -> None:
        await self._comm.add(into, addend)

    async def compute(self, label: str, work: Callable[[], T]) -> T:
        return await self._comm.compute(label, work)

    def start(self, work: Program[T], *, shared_tags: bool = False) -> Task[T]:
        return self._comm.start(work, shared_tags=shared_tags)

    async def split(self, color: int, key: int = 0) -> Comm:
        return self._wrap(await self._comm.split(color, key))

    async def subcommunicator(self, color: Callable[[int], int], division: Hashable) -> Comm:
        return self._wrap(await self._comm.subcommunicator(color, division))

    async def survivors(self) -> Comm:
        return self._wrap(await self._comm.survivors())

    async def native(self, collective: str, buffer: Array, counts: Sequence[int] = ()) -> None:
        await self._comm.native(collective, buffer, counts)

    def scratch(self, size: int, like: Array) -> AbstractContextManager[Array]:
        return self._comm.scratch(size, like)

    def borrow_shared(self, like: Array) -> AbstractContextManager[Array]:
        return self._comm.borrow_shared(like)

    def clock(self) -> tuple[int, int]:
        return self._comm.clock()

    async def allgather_words(self, words: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return await self._comm.allgather_words(words)

    async def get(self, into: Array, theirs: Array, peer: int) -> None:
        await self._comm.get(into, theirs, peer)
