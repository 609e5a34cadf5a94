"""The MPI library's own collectives on host memory: one call each, blocking or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpi4py import MPI

from hpcdl.fabric.comm import partition

if TYPE_CHECKING:
    from collections.abc import Generator

    from hpcdl.fabric.comm import Array, Scratch
    from hpcdl.fabric.pipeline import Wait


class Natives:
    """The collectives of one communicator: blocking ones on ``main``, others on ``nonblocking`` and ``second``."""

    def __init__(
        self, scratch: Scratch, main: MPI.Intracomm, nonblocking: MPI.Intracomm, second: MPI.Intracomm
    ) -> None:
        self._scratch = scratch
        self._main = main
        self._nonblocking = nonblocking
        self._second = second
        self._scattered = 0
        self._gathered = 0
        """Started programs' reduce-scatters, and allgathers after them, that have begun."""

    def run(self, collective: str, buffer: Array, *, blocking: bool) -> Generator[Wait, None, None]:
        """Do ``collective`` in place on ``buffer``, host memory, with the library's blocking call or without."""
        if collective == "reduce_scatter allgather":
            yield from self._halves(buffer, blocking=blocking)
            return
        if collective == "nonblocking allreduce":
            channel = self._main if blocking else self._nonblocking
            blocking = False
            request = channel.Iallreduce(MPI.IN_PLACE, buffer)
        elif collective == "allreduce":
            if blocking:
                self._main.Allreduce(MPI.IN_PLACE, buffer)
            else:
                request = self._nonblocking.Iallreduce(MPI.IN_PLACE, buffer)
        elif collective == "barrier":
            if blocking:
                self._main.Barrier()
            else:
                request = self._nonblocking.Ibarrier()
        else:
            raise ValueError(f"no native collective {collective!r}")
        if not blocking and not request.Test():
            yield request.Test

    def _halves(self, buffer: Array, *, blocking: bool) -> Generator[Wait, None, None]:
        """The library's reduce-scatter and allgather.

        Started programs' allgathers begin in the order of their reduce-scatters, and on a communicator without
        others, for these end on each rank as they will.
        """
        counts = [len(part) for part in partition(buffer, self._main.size)]
        with self._scratch.borrow(counts[self._main.rank], buffer) as mine:
            if blocking:
                self._main.Reduce_scatter(buffer, mine, counts)
                self._main.Allgatherv(mine, [buffer, counts])
                return
            turn = self._scattered
            self._scattered += 1
            request = self._nonblocking.Ireduce_scatter(buffer, mine, counts)

            def may_gather() -> bool:
                return bool(request.Test()) and self._gathered == turn

            if not may_gather():
                yield may_gather
            self._gathered += 1
            gathering = self._second.Iallgatherv(mine, [buffer, counts])
            if not gathering.Test():
                yield gathering.Test
