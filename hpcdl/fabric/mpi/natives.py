"""The MPI library's own collectives: one call each, blocking or not."""

from collections.abc import Callable, Generator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
from mpi4py import MPI

from hpcdl.fabric.comm import Array
from hpcdl.fabric.device.staged_copy import Wait, until
from hpcdl.fabric.device.transport import Nccl
from hpcdl.fabric.vectors import Blocks, BufferPool, partition

_MAX_BYTES: Final = 1 << 30
"""Bytes of vectors that the requests on one communicator keep alive."""
_MAX_REQUESTS: Final = 256
"""Requests on one communicator; a vector in shared memory keeps a file open."""


@dataclass
class _Request:
    request: MPI.Prequest
    vectors: tuple[Array, ...]
    active: bool = False
    """Started and not completed; MPI must not free it then."""

    @property
    def nbytes(self) -> int:
        return sum(vector.nbytes for vector in self.vectors)

    def free(self) -> None:
        if not self.active:
            self.request.Free()


class PersistentRequests:
    """The persistent requests of the running program on one communicator, found by the addresses of their vectors.

    A request keeps its vectors alive, which mpi4py does not do. Otherwise a new vector could get the address of a
    freed one on one rank only: that rank would start an old request where the others make a new one, and all would
    wait for ever. All ranks use the same vectors in the same order; so they make and free requests in the same
    order.

    ``at_end`` gets :meth:`free`, which is to be called when the program has ended.
    """

    def __init__(self, communicator: MPI.Intracomm, at_end: set[Callable[[], None]]) -> None:
        self._communicator = communicator
        self._at_end = at_end
        self._requests: dict[tuple[int, ...], _Request] = {}
        """By addresses, bytes and type number of the vectors; the most recently used request is the last one."""

    def allreduce(self, operand: Array | None, buffer: Array, *, blocking: bool) -> Generator[Wait, None, None]:
        """Sum ``operand``, or ``buffer`` in place where that is None, into ``buffer``.

        Raises ValueError where the library has no persistent collectives.
        """
        vectors = (buffer,) if operand is None else (operand, buffer)
        key = (*(vector.__array_interface__["data"][0] for vector in vectors), buffer.nbytes, buffer.dtype.num)
        request = self._requests.pop(key, None)
        if request is None:
            request = self._make(operand, vectors)
        self._requests[key] = request
        request.active = True
        request.request.Start()
        if blocking:
            request.request.Wait()
        else:
            yield from until(request.request.Test)
        request.active = False
        if self._requests.get(key) is not request:  # freed while it was active
            request.free()

    def free(self) -> None:
        """Free all requests; one that is active is freed when it has completed."""
        while self._requests:
            self._requests.pop(next(iter(self._requests))).free()

    def _make(self, operand: Array | None, vectors: tuple[Array, ...]) -> _Request:
        """Make a request, and free the least recently used ones that are too many with it."""
        try:
            request = self._communicator.Allreduce_init(MPI.IN_PLACE if operand is None else operand, vectors[-1])
        except NotImplementedError:
            raise ValueError("this MPI library has no MPI_Allreduce_init: it came with MPI 4.0") from None
        if not self._requests:
            self._at_end.add(self.free)
        made = _Request(request, vectors)
        left = _MAX_BYTES - made.nbytes - sum(request.nbytes for request in self._requests.values())
        while self._requests and (left < 0 or len(self._requests) >= _MAX_REQUESTS):
            oldest = self._requests.pop(next(iter(self._requests)))
            left += oldest.nbytes
            oldest.free()
        return made


_CALLS: Final = {
    "allreduce": ("Allreduce", "Iallreduce"),
    "broadcast": ("Bcast", "Ibcast"),
    "reduce": ("Reduce", "Ireduce"),
    "reduce_scatter": ("Reduce_scatter", "Ireduce_scatter"),
    "allgather": ("Allgatherv", "Iallgatherv"),
    "all_to_all": ("Alltoall", "Ialltoall"),
    "alltoallv": ("Alltoallv", "Ialltoallv"),
    "barrier": ("Barrier", "Ibarrier"),
}
"""Names of the blocking and of the non-blocking call."""


def _host_copy(vector: Any) -> Array:
    """Return a copy of a vector in a device's memory; one in the host's memory itself."""
    return vector if isinstance(vector, np.ndarray) else vector.get()


class Natives:
    """The collectives of one communicator: blocking ones on ``main``, others on ``nonblocking`` and ``second``.

    ``at_end`` is that of :class:`PersistentRequests`.
    """

    def __init__(
        self,
        scratch: BufferPool,
        main: MPI.Intracomm,
        nonblocking: MPI.Intracomm,
        second: MPI.Intracomm,
        at_end: set[Callable[[], None]],
    ) -> None:
        self._scratch = scratch
        self._main = main
        self._nonblocking = nonblocking
        self._second = second
        self._scattered = 0
        self._gathered = 0
        """Numbers of started programs' reduce-scatters, and of their allgathers, that have begun."""
        self._nccl: Nccl | None = None
        self._persistent = PersistentRequests(main, at_end)
        self._persistent_nonblocking = PersistentRequests(nonblocking, at_end)
        self.simple: dict[str, Callable[[Array], object]] = {
            "allreduce": partial(main.Allreduce, MPI.IN_PLACE),
            "barrier": lambda _: main.Barrier(),
        }
        """Blocking calls in place of a main program, past :meth:`run`: its steps take as long as a short one."""

    def run(
        self, collective: str, operand: Array | None, buffer: Array, counts: Sequence[int], *, blocking: bool
    ) -> Generator[Wait, None, None]:
        """Run ``collective`` blocking or not; in place on ``buffer`` if ``operand`` is None."""
        if isinstance(buffer, Blocks):
            yield from self._blocks(buffer, blocking=blocking)
        elif isinstance(buffer, np.ndarray):
            yield from self._on_host(collective, operand, buffer, counts, blocking=blocking)
        elif collective == "nccl":
            if self._nccl is None:
                self._nccl = Nccl(self._main.rank, self._main.size, self._main.allgather, self._main.bcast)
            yield from until(self._nccl.allreduce(operand, buffer))
        else:
            # on a copy: not all libraries that send device memory reduce it
            host = _host_copy(buffer if operand is None else operand)
            yield from self._on_host(collective, None, host, counts, blocking=blocking)
            buffer.set(host)

    def _on_host(
        self, collective: str, operand: Array | None, buffer: Array, counts: Sequence[int], *, blocking: bool
    ) -> Generator[Wait, None, None]:
        given = MPI.IN_PLACE if operand is None else operand
        if collective == "nonblocking allreduce":
            # collectives of main programs share one communicator, because ranks differ in their started programs
            yield from until((self._main if blocking else self._nonblocking).Iallreduce(given, buffer).Test)
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
            persistent = self._persistent if blocking else self._persistent_nonblocking
            yield from persistent.allreduce(operand, buffer, blocking=blocking)
        elif collective in _CALLS:
            arguments = self._arguments(collective, operand, buffer, counts)
            yield from self._call(collective, arguments, blocking=blocking)
        else:
            raise ValueError(f"no native collective {collective!r}")

    def _arguments(
        self, collective: str, operand: Array | None, buffer: Array, counts: Sequence[int]
    ) -> tuple[object, ...]:
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

    def _blocks(self, blocks: Blocks, *, blocking: bool) -> Generator[Wait, None, None]:
        """Run the all-to-all with counts, of vectors in a device's memory on copies."""
        result: Any = blocks.incoming.whole
        sent, received = ((_host_copy(parts.whole), parts.counts) for parts in blocks)
        yield from self._call("alltoallv", (sent, received), blocking=blocking)
        if received[0] is not result:
            result.set(received[0])

    def _part(self, vector: Array, counts: Sequence[int]) -> Array:
        begin = sum(counts[: self._main.rank])
        return vector[begin : begin + counts[self._main.rank]]

    def _call(
        self, collective: str, arguments: tuple[object, ...], *, blocking: bool
    ) -> Generator[Wait, None, None]:
        name, nonblocking = _CALLS[collective]
        if blocking:
            getattr(self._main, name)(*arguments)
        else:
            yield from until(getattr(self._nonblocking, nonblocking)(*arguments).Test)

    def _halves(self, operand: Array | None, buffer: Array, *, blocking: bool) -> Generator[Wait, None, None]:
        """Run the library's reduce-scatter and allgather; out of place, each part's sum goes to its final place.

        Started programs' allgathers begin in the order of their reduce-scatters on a communicator of their own,
        because reduce-scatters complete in another order on each rank.
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

            def gather_is_next() -> bool:
                return bool(request.Test()) and self._gathered == turn

            yield from until(gather_is_next)
            self._gathered += 1
            yield from until(self._second.Iallgatherv(sent, [buffer, counts]).Test)
