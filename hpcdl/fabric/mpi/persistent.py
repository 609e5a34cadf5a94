"""Persistent allreduce requests (MPI 4.0): made once for each vector, started many times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mpi4py import MPI

if TYPE_CHECKING:
    from collections.abc import Generator

    from hpcdl.fabric.comm import Array
    from hpcdl.fabric.device.staged_copy import Wait

_MOST_BYTES: Final = 1 << 30
"""Bytes of vectors that the requests on one communicator keep alive."""
_MOST_REQUESTS: Final = 256
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

    ``in_use`` gets this object while it has requests; :meth:`free` is to be called when the program has ended.
    """

    def __init__(self, communicator: MPI.Intracomm, in_use: list[PersistentRequests]) -> None:
        self._communicator = communicator
        self._in_use = in_use
        self._requests: dict[tuple[int, ...], _Request] = {}
        """By addresses, bytes and type number of the vectors; the most recently used request is the last one."""

    def allreduce(self, operand: Array | None, buffer: Array, *, blocking: bool) -> Generator[Wait, None, None]:
        """Sum ``operand``, or ``buffer`` in place where that is None, into ``buffer``.

        Raises ValueError where the library has no persistent collectives.
        """
        vectors = (buffer,) if operand is None else (operand, buffer)
        key = (*(vector.__array_interface__["data"][0] for vector in vectors), buffer.nbytes, buffer.dtype.num)
        one = self._requests.pop(key, None)
        if one is None:
            one = self._make(operand, vectors)
        self._requests[key] = one
        one.active = True
        one.request.Start()
        if blocking:
            one.request.Wait()
        elif not one.request.Test():
            yield one.request.Test
        one.active = False
        if self._requests.get(key) is not one:  # freed while it was active
            one.free()

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
            self._in_use.append(self)
        made = _Request(request, vectors)
        left = _MOST_BYTES - made.nbytes - sum(one.nbytes for one in self._requests.values())
        while self._requests and (left < 0 or len(self._requests) >= _MOST_REQUESTS):
            oldest = self._requests.pop(next(iter(self._requests)))
            left += oldest.nbytes
            oldest.free()
        return made
