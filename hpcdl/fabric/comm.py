"""The protocol that every distributed algorithm of hpcdl is written against: see :mod:`hpcdl.fabric`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from types import CodeType
from typing import Any, Final, Generic, NamedTuple, Protocol, Self, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from hpcdl.fabric.task import Program, Task

Array = npt.NDArray[Any]
"""A contiguous array of numpy or of a library with the same interface, such as cupy."""


class Device(Protocol):
    """Memory of a GPU, and launches of compiled kernels; all run in the order of one stream."""

    def empty(self, shape: tuple[int, ...], dtype: str) -> Array:
        """Return an aligned, uninitialised array."""

    def zeros(self, shape: tuple[int, ...], dtype: str) -> Array: ...

    def asarray(self, array: Array) -> Array: ...

    def to_host(self, array: Array) -> Array:
        """Return a copy on the host, after all launched work is done."""

    def launch(self, source: str, kernel: str, dtype: str, grid: int, *arguments: Array | float | None) -> None:
        """Launch ``kernel`` of ``source``, compiled for ``dtype``, over ``grid`` elements.

        Arrays are passed as addresses, None as null, ints as 64 bits, floats as doubles.
        """


T = TypeVar("T")

Event = tuple[int, str, int, int, int, int]
"""One traced operation: (started task's number or 0, label, begin ns, end ns, peer or -1, bytes)."""

ANY: Final = -1
"""Wildcard for the source or the tag of a receive."""

INPUT: Final = "input"
"""Label of the work that waits for a step's images and hands them to the device."""

SHARD_UPDATE: Final = "shard update"
"""Label of the optimizer's update of a part of the parameters, which belongs to an exchange."""

Locals: TypeAlias = dict[str, Any]
"""Local variables of a suspended function."""

LIBRARY_CALLS: Final[dict[CodeType, Callable[[Locals], str]]] = {}
"""Programs that call the MPI library themselves: what one waits in, of its local variables; ``begin`` is in ns."""


class Status(NamedTuple):
    """Outcome of a receive: source, tag and number of elements."""

    source: int
    tag: int
    count: int  # type: ignore[assignment] # hides tuple.count, which is not used


class Counters(NamedTuple):
    """Clock and totals of one rank since its interpreter began; native collectives are not counted."""

    time_ns: int
    messages: int
    bytes: int
    compute_ns: int
    """Time inside :meth:`Comm.compute`."""
    input_ns: int
    """The part of ``compute_ns`` in work labelled :data:`INPUT`."""


class PeerLost(Exception):  # noqa: N818 - named for the event
    """The peer of an operation has failed; a receive from any rank raises it once for each failed rank."""

    def __init__(self, rank: int, detail: str = "") -> None:
        super().__init__(f"rank {rank} is gone{': ' + detail if detail else ''}")
        self.rank = rank


TAGS: Final = 256
"""A program's tags are 0 to 255."""


class Comm(Protocol):
    """A group of ranks as one of them sees it."""

    @property
    def rank(self) -> int:
        """This rank, 0 to size - 1."""

    @property
    def size(self) -> int:
        """Number of ranks."""

    async def send(self, buffer: Array, dest: int, tag: int = 0) -> None:
        """Send ``buffer``; on return it may be changed. May wait for the receiver (rendezvous)."""

    async def recv(self, buffer: Array, source: int = ANY, tag: int = ANY) -> Status:
        """Receive at most ``buffer.size`` elements; ``Status.count`` is their number."""

    async def exchange(self, outgoing: Array, dest: int, incoming: Array, source: int, tag: int = 0) -> Status:
        """Send and receive at once; returns the receive's status."""

    async def apply(self, label: str, work: Callable[[], T], touched_bytes: int) -> T:
        """Do arithmetic that belongs to an exchange: a sum, a mean of models, a server's update, an encoding.

        It is traced under ``label``, never waits for :meth:`compute`, and no other program of the rank runs
        meanwhile. In simulation it takes gamma x ``touched_bytes``: the bytes written by all its passes over
        vectors.
        """

    async def add(self, into: Array, addend: Array) -> object:
        """Sum ``into += addend`` on the array's device: :meth:`apply` of one pass over ``into``."""

    async def compute(self, label: str, work: Callable[[], T]) -> T:
        """Do local ``work``: traced under ``label``; in simulation it takes the modelled time of its label.

        Raises ValueError, in simulation, for a label without a modelled time.
        """

    def start(self, work: Program[T], *, shared_tags: bool = False) -> Task[T]:
        """Start ``work``, which runs concurrently with the caller.

        Ranks that start the same programs in the same order need no further care: the n-th program that a program
        starts on this communicator has its own tag space, the same on every rank. With ``shared_tags``
        the program uses its starter's tag space instead, so that its peer may be a program that was not started
        (a push to a server, for example).

        An error of ``work`` is raised where a program awaits the task. If no program awaits it when the error
        occurs, the error ends the run; under MPI at once, because other programs may wait for the failed one.
        """

    async def split(self, color: int, key: int = 0) -> Comm:
        """Return the ranks that gave the same ``color``, ordered by ``key``, then by rank. Collective."""

    async def subcommunicator(self, color: Callable[[int], int], division: Hashable) -> Comm:
        """Return the ranks of the same ``color(rank)`` in a ``division``, in their order.

        It is split once and cached, because creation is slow and handles are scarce. Programs that run
        concurrently all wait for the first one that asks, which must be the same on every rank: they ask before
        their first message.
        """

    async def survivors(self) -> Comm:
        """Return the ranks that have not failed, in their order; this communicator itself if none has.

        All of them must call, when none of their programs uses this communicator any more.
        """

    async def native(self, collective: str, buffer: Array, counts: Sequence[int] = ()) -> None:
        """Run the library's own collective in place on ``buffer``: ``"barrier"``, or one of these.

        A sum on all ranks: ``"allreduce"``, ``"reduce_scatter allgather"``, ``"nonblocking allreduce"`` or
        ``"persistent allreduce"``. From or to rank 0: ``"broadcast"``, ``"reduce"``. By parts, of which ``counts``
        gives each rank's elements: ``"reduce_scatter"``, ``"allgather"``, ``"all_to_all"`` (equal parts only).
        Of :class:`hpcdl.fabric.vectors.Blocks` in the place of ``buffer``: ``"alltoallv"``.
        All but the nonblocking one block the rank when a main program calls them: started programs do not
        progress.
        """

    def scratch(self, size: int, like: Array) -> AbstractContextManager[Array]:
        """Borrow an uninitialised array of ``size`` elements of the type of ``like`` from a pool.

        Fresh memory costs a page fault every 4 KiB, more than the arithmetic done in it.
        """

    @property
    def memory(self) -> Memory:
        """Vectors that all ranks of this host can read; :class:`hpcdl.fabric.vectors.Window` exchanges them."""

    def borrow_shared(self, like: Array) -> AbstractContextManager[Array]:
        """Borrow an uninitialised vector of the size and type of ``like`` in shared memory from a pool."""

    async def allgather_words(self, words: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the ``words`` of all ranks, (p, words), after a barrier; each rank gives equally many.

        Writes to shared memory before it are visible to all ranks after it. A main program blocks its rank.
        """

    def clock(self) -> tuple[int, int]:
        """Return the offset from this rank's clock to rank 0's and its greatest error (ns). Collective.

        Both are 0 in one process, where ranks share a clock.
        """

    async def get(self, into: Array, theirs: Array, peer: int) -> None:
        """Copy ``peer``'s vector ``theirs`` out of its shared memory: traced, costed like a message."""


class Memory(Protocol):
    """Vectors that ranks of one host share; see :mod:`hpcdl.fabric.shared_memory`."""

    def allocate(self, size: int, dtype: npt.DTypeLike = np.float32) -> Array:
        """Make a vector of ``size`` zeros that other ranks of this host can map."""

    def place(self, array: Array) -> npt.NDArray[np.int64]:
        """Return numbers by which other ranks find ``array``; the last one is 0 if they cannot."""

    def map(self, place: npt.NDArray[np.int64], like: Array) -> Array:
        """Return another rank's array at ``place``, of the size and type of ``like``.

        Raises ValueError if it is on another host or cannot be mapped.
        """

    def release(self) -> None:
        """Unmap all arrays of other ranks."""


def check_address(peer: int, tag: int, ranks: int, least: int = 0) -> None:
    """Raise ValueError for a rank or a tag out of range; with ``least`` = ANY wildcards are valid."""
    if not least <= peer < ranks:
        raise ValueError(f"rank {peer} is not in a communicator of {ranks}")
    if not least <= tag < TAGS:
        raise ValueError(f"tag {tag} is not in 0..{TAGS - 1}")


def check_exchange(dest: int, source: int, tag: int, ranks: int) -> None:
    """Raise ValueError for a rank or a tag out of range; wildcards are not valid."""
    if not (0 <= dest < ranks and 0 <= source < ranks and 0 <= tag < TAGS):
        check_address(dest, tag, ranks)
        check_address(source, tag, ranks)


C = TypeVar("C", bound=Comm)


@dataclass(eq=False)
class Wrapper(Generic[C]):
    """A :class:`hpcdl.fabric.comm.Comm` over another one, as are the communicators that are made from it."""

    _comm: C

    def _wrap(self, comm: Any) -> Self:
        """Wrap a communicator that the wrapped one has made."""
        return replace(self, _comm=comm)

    def __getattr__(self, name: str) -> Any:
        """Return the operation of the wrapped communicator, if a subclass has none of its own."""
        return getattr(self._comm, name)

    async def split(self, color: int, key: int = 0) -> Comm:
        return self._wrap(await self._comm.split(color, key))

    async def subcommunicator(self, color: Callable[[int], int], division: Hashable) -> Comm:
        return self._wrap(await self._comm.subcommunicator(color, division))

    async def survivors(self) -> Comm:
        return self._wrap(await self._comm.survivors())
