"""The MPI library's own collectives on host memory: one call each, blocking or not."""

from __future__ import annotations

from contextlib import nullcontext
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
        self._persistent: dict[tuple[int, int, int, str, bool], tuple[MPI.Prequest, int]] = {}
        """By addresses, bytes and type of the vectors, and by channel: the request and the bytes that it holds."""

    def run(
        self, collective: str, operand: Array | None, buffer: Array, counts: Sequence[int], *, blocking: bool
    ) -> Generator[Wait, None, None]:
        """Do ``collective`` with the library's blocking call or without; ``operand`` None: in place on ``buffer``.

        Both are in host memory.
        """
        given = MPI.IN_PLACE if operand is None else operand
        if collective == "nonblocking allreduce":
            # a main program's collectives are all on one communicator, whichever ranks have started something
            request = (self._main if blocking else self._nonblocking).Iallreduce(given, buffer)
            if not request.Test():
                yield request.Test
        elif collective == "reduce_scatter allgather":
            yield from self._halves(operand, buffer, blocking=blocking)
        elif collective == "reduce_scatter":
            part = self._part(buffer, counts)
            with self._scratch.borrow(len(part), buffer) if operand is None else nullcontext(part) as mine:
                whole = buffer if operand is None else operand
                yield from self._call(collective, (whole, mine, counts), blocking=blocking)
                if operand is None:
                    part[:] = mine  # MPI lets no result lie within its operand
        elif collective == "persistent allreduce":
            yield from self._start(operand, buffer, blocking=blocking)
        elif collective in _CALLS:
            arguments = self._arguments(collective, operand, buffer, counts)
            yield from self._call(collective, arguments, blocking=blocking)
        else:
            raise ValueError(f"no native collective {collective!r}")

    def _arguments(
        self, collective: str, operand: Array | None, buffer: Array, counts: Sequence[int]
    ) -> tuple[Any, ...]:
        given = MPI.IN_PLACE if operand is None else operand
        if collective == "allreduce":
            return given, buffer
        if collective == "broadcast":
            if operand is not None and self._main.rank == 0:
                buffer[:] = operand
            return (buffer,)
        if collective == "reduce":
            return (buffer if operand is None else operand, None) if self._main.rank else (given, buffer)
        if collective == "allgather":
            return given if operand is None else self._part(operand, counts), [buffer, counts]
        if collective == "all_to_all":
            return given if operand is None else operand[: sum(counts)], buffer[: sum(counts)]
        return ()

    def _part(self, vector: Array, counts: Sequence[int]) -> Array:
        """This rank's part of ``vector``."""
        begin = sum(counts[: self._main.rank])
        return vector[begin : begin + counts[self._main.rank]]

    def _call(self, collective: str, arguments: tuple[Any, ...], *, blocking: bool) -> Generator[Wait, None, None]:
        name, nonblocking = _CALLS[collective]
        if blocking:
            getattr(self._main, name)(*arguments)
            return
        request = getattr(self._nonblocking, nonblocking)(*arguments)
        if not request.Test():
            yield request.Test

    def _start(self, operand: Array | None, buffer: Array, *, blocking: bool) -> Generator[Wait, None, None]:
        """Start these vectors' persistent request, which holds on to them: nothing else is at their addresses.

        All ranks meet the same vectors in the same order, and so make and free requests alike.
        """
        given = buffer if operand is None else operand
        addresses = (given.__array_interface__["data"][0], buffer.__array_interface__["data"][0])
        key = (*addresses, buffer.nbytes, buffer.dtype.str, blocking)
        kept = self._persistent
        if key in kept:
            kept[key] = kept.pop(key)
        else:
            try:
                channel = self._main if blocking else self._nonblocking
                made = channel.Allreduce_init(MPI.IN_PLACE if operand is None else operand, buffer)
            except NotImplementedError:
                raise ValueError("this MPI library has no MPI_Allreduce_init: it came with MPI 4.0") from None
            kept[key] = made, buffer.nbytes + (0 if operand is None else operand.nbytes)
            while sum(size for _, size in kept.values()) > _KEPT_BYTES and len(kept) > 1:
                kept.pop(next(iter(kept)))[0].Free()
        request, _ = kept[key]
        request.Start()
        if not blocking and not request.Test():
            yield request.Test
        elif blocking:
            request.Wait()

    def _halves(self, operand: Array | None, buffer: Array, *, blocking: bool) -> Generator[Wait, None, None]:
        """The library's reduce-scatter and allgather; out of place a part's sum is put where it stays.

        Started programs' allgathers begin in the order of their reduce-scatters, and on a communicator without
        others, for these end on each rank as they will.
        """
        counts = partition(buffer, self._main.size).counts
        part = self._part(buffer, counts)
        with self._scratch.borrow(len(part), buffer) if operand is None else nullcontext(part) as mine:
            whole, sent = (buffer, mine) if operand is None else (operand, MPI.IN_PLACE)
            if blocking:
                self._main.Reduce_scatter(whole, mine, counts)
                self._main.Allgatherv(sent, [buffer, counts])
                return
            turn = self._scattered
            self._scattered += 1
            request = self._nonblocking.Ireduce_scatter(whole, mine, counts)

            def may_gather() -> bool:
                return bool(request.Test()) and self._gathered == turn

            if not may_gather():
                yield may_gather
            self._gathered += 1
            gathering = self._second.Iallgatherv(sent, [buffer, counts])
            if not gathering.Test():
                yield gathering.Test
