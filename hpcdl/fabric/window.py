"""Windows: the same vector of every rank of a host, each readable by all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import numpy.typing as npt

    from hpcdl.fabric.comm import Array, Comm

_NOTHING: Final = np.empty(0, np.int64)


class Window:
    """``async with Window(comm, buffer) as window``: everybody's vector is in ``window.vectors``.

    ``window.vectors[comm.rank]`` is one's own: ``buffer``, or a copy of it where that is not in memory from
    ``comm.memory.allocate``; then what it holds in the end is copied back. MPI's fences (MPI 4.1, section 12.5.1):
    what was written before a fence is there for all after it. Entering and leaving are fences; between them
    :meth:`fence` is.
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
        place = comm.memory.place(own)
        if not place[-1]:
            self._loan = comm.lend(own)
            own = self._loan.__enter__()
            await comm.get(own, self._buffer, comm.rank)
            place = comm.memory.place(own)
        self.vectors = [
            own if rank == comm.rank else comm.memory.map(theirs, own)
            for rank, theirs in enumerate(await comm.meet(place))
        ]
        return self

    async def fence(self) -> None:
        """Wait until all ranks are here."""
        await self._comm.meet(_NOTHING)

    async def __aexit__(self, kind: object, _error: object, _traceback: object) -> None:
        if kind is not None:
            return
        await self.fence()
        if self._loan is not None:
            await self._comm.get(self._buffer, self.vectors[self._comm.rank], self._comm.rank)
            self._loan.__exit__(None, None, None)


async def disseminate(comm: Comm, words: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Everybody's ``words``, (p, words), after ceil(log2 p) messages of each rank.

    Bruck's allgather (Bruck et al. 1997); without words the dissemination barrier (Hensgen, Finkel & Manber 1988).
    """
    table: npt.NDArray[Any] = np.zeros((comm.size, len(words)), np.int64)
    table[0] = words  # row i is of the rank i after one's own
    known = 1
    while known < comm.size:
        more = min(known, comm.size - known)
        to, source = (comm.rank - known) % comm.size, (comm.rank + known) % comm.size
        await comm.exchange(table[:more].ravel(), to, table[known : known + more].ravel(), source)
        known += more
    return np.roll(table, comm.rank, axis=0)
