"""Windows: one vector of each rank of a host, readable by all of them."""

from contextlib import AbstractContextManager
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from hpcdl.fabric.comm import Array, Comm

_NOTHING: Final = np.empty(0, np.int64)


class Window:
    """``async with Window(comm, buffer) as window``: the vectors of all ranks are in ``window.vectors``.

    ``window.vectors[comm.rank]`` is ``buffer`` itself if it is in memory from ``comm.memory.allocate``, otherwise
    a copy that is copied back at the end. Writes before a fence are visible to all ranks after it (MPI 4.1,
    section 12.5.1). Entering, leaving and :meth:`fence` are fences.
    """

    def __init__(self, comm: Comm, buffer: Array) -> None:
        self._comm = comm
        self._buffer = buffer
        self._loan: AbstractContextManager[Array] | None = None
        self.vectors: list[Array] = []

    async def __aenter__(self) -> Self:
        comm, own = self._comm, self._buffer
        if not isinstance(own, np.ndarray):
            raise TypeError(f"a {type(own).__name__} is not in the host's memory")
        # Only memory of ``allocate`` has a file that others can map; other vectors take part by a copy.
        place = comm.memory.place(own)
        if not place[-1]:
            self._loan = comm.borrow_shared(own)
            own = self._loan.__enter__().view(type(own))  # a subclass may have its own addition
            await comm.get(own, self._buffer, comm.rank)
            place = comm.memory.place(own)
        self.vectors = [
            own if rank == comm.rank else comm.memory.map(theirs, own)
            for rank, theirs in enumerate(await comm.allgather_words(place))
        ]
        return self

    async def fence(self) -> None:
        """Wait for all ranks."""
        await self._comm.allgather_words(_NOTHING)

    async def __aexit__(self, kind: object, _error: object, _traceback: object) -> None:
        if kind is not None:
            return
        await self.fence()
        if self._loan is not None:
            await self._comm.get(self._buffer, self.vectors[self._comm.rank], self._comm.rank)
            self._loan.__exit__(None, None, None)


async def disseminate(comm: Comm, words: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the ``words`` of all ranks, (p, words), after ceil(log2 p) messages of each rank.

    Bruck's allgather (Bruck et al. 1997); without words the dissemination barrier (Hensgen, Finkel & Manber 1988).
    """
    table: npt.NDArray[np.int64] = np.zeros((comm.size, len(words)), np.int64)
    table[0] = words  # row i is of the rank i after one's own
    known = 1
    while known < comm.size:
        more = min(known, comm.size - known)
        to, source = (comm.rank - known) % comm.size, (comm.rank + known) % comm.size
        await comm.exchange(table[:more].ravel(), to, table[known : known + more].ravel(), source)
        known += more
    return np.roll(table, comm.rank, axis=0)
