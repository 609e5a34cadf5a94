"""The MPI library's own collectives on host memory: one call each, blocking or not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mpi4py import MPI

from hpcdl.fabric.comm import partition

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from hpcdl.fabric.comm import Array
    from hpcdl.fabric.pipeline import Wait
    from hpcdl.fabric.scratch import Scratch

_CALLS: Final = {
    "allreduce": ("Allreduce", "Iallreduce"),
    "broadcast": ("Bcast", "Ibcast"),
    "reduce": ("Reduce", "Ireduce"),
    "reduce_scatter": ("Reduce_scatter", "Ireduce_scatter"),
    "allgather": ("Allgatherv", "Iallgatherv"),
    "all_to_all": ("Alltoall", "Ialltoall"),
    "barrier": ("Barrier", "Ibarrier"),
}
"""What MPI calls them where they block, and where they do not."""

_KEPT_BYTES: Final = 1 << 30
"""Of vectors that persistent requests hold on to; those that were not used longest are freed beyond it."""


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
        self._persistent: dict[tuple[int, int, str, bool], tuple[MPI.Prequest, int]] = {}
        """By address, bytes and type of the vector, and by channel: the request and the bytes that it holds."""

    def run(
        self, collective: str, buffer: Array, counts: Sequence[int], *, blocking: bool
    ) -> Generator[Wait, None, None]:
        """Do ``collective`` in place on ``buffer``, host memory, with the library's blocking call or without."""
        if collective == "nonblocking allreduce":
            # a main program's collectives are all on one communicator, whichever ranks have started something
            request = (self._main if blocking else self._nonblocking).Iallreduce(MPI.IN_PLACE, buffer)
            if not request.Test():
                yield request.Test
        elif collective == "reduce_scatter allgather":
            yield from self._halves(buffer, blocking=blocking)
        elif collective == "reduce_scatter":
            with self._scratch.borrow(counts[self._main.rank], buffer) as mine:
                yield from self._call(collective, (buffer, mine, counts), blocking=blocking)
                begin = sum(counts[: self._main.rank])
                buffer[begin : begin + len(mine)] = mine  # MPI lets no result lie within its operand
        elif collective == "persistent allreduce":
            yield from self._start(buffer, blocking=blocking)
        elif collective in _CALLS:
            yield from self._call(collective, self._arguments(collective, buffer, counts), blocking=blocking)
        else:
            raise ValueError(f"no native collective {collective!r}")

    def _arguments(self, collective: str, buffer: Array, counts: Sequence[int]) -> tuple[Any, ...]:
        if collective == "allreduce":
            return MPI.IN_PLACE, buffer
        if collective == "broadcast":
            return (buffer,)
        if collective == "reduce":
            return (buffer, None) if self._main.rank else (MPI.IN_PLACE, buffer)
        if collective == "allgather":
            return MPI.IN_PLACE, [buffer, counts]
        if collective == "all_to_all":
            return MPI.IN_PLACE, buffer[: sum(counts)]
        return ()

    def _call(self, collective: str, arguments: tuple[Any, ...], *, blocking: bool) -> Generator[Wait, None, None]:
        name, nonblocking = _CALLS[collective]
        if blocking:
            getattr(self._main, name)(*arguments)
            return
        request = getattr(self._nonblocking, nonblocking)(*arguments)
        if not request.Test():
            yield request.Test

    def _start(self, buffer: Array, *, blocking: bool) -> Generator[Wait, None, None]:
        """Start this vector's persistent request, which holds on to it, so that nothing else is at its address.

        All ranks meet the same vectors in the same order, and so make and free requests alike.
        """
        key = (buffer.__array_interface__["data"][0], buffer.nbytes, buffer.dtype.str, blocking)
        kept = self._persistent
        if key in kept:
            kept[key] = kept.pop(key)
        else:
            try:
                made = (self._main if blocking else self._nonblocking).Allreduce_init(MPI.IN_PLACE, buffer)
            except NotImplementedError:
                raise ValueError("this MPI library has no MPI_Allreduce_init: it came with MPI 4.0") from None
            kept[key] = made, buffer.nbytes
            while sum(size for _, size in kept.values()) > _KEPT_BYTES and len(kept) > 1:
                kept.pop(next(iter(kept)))[0].Free()
        request, _ = kept[key]
        request.Start()
        if not blocking and not request.Test():
            yield request.Test
        elif blocking:
            request.Wait()

    def _halves(self, buffer: Array, *, blocking: bool) -> Generator[Wait, None, None]:
        """The library's reduce-scatter and allgather.

        Started programs' allgathers begin in the order of their reduce-scatters, and on a communicator without
        others, for these end on each rank as they will.
        """
        counts = partition(buffer, self._main.size).counts
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
