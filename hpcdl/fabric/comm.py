"""The protocol that every distributed algorithm of hpcdl is written against.

An algorithm is an ``async def`` over a :class:`Comm`. It asks; an interpreter answers: MPI
(:mod:`hpcdl.fabric.mpi`), all ranks in one process (:mod:`hpcdl.fabric.inprocess`) or virtual time
(:mod:`hpcdl.fabric.simulated`). It holds no clock, no thread, no file and no MPI.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from hpcdl.fabric.phantom import Phantom, phantom

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Hashable, Iterable, Sequence
    from contextlib import AbstractContextManager

    from hpcdl.fabric.task import Task

Array = npt.NDArray[Any]
"""A contiguous array: numpy's, or any other library's with the same face (cupy's, say)."""

T = TypeVar("T")

Event = tuple[int, str, int, int, int, int]
"""One traced operation: (started task's number or 0, label, begin ns, end ns, peer or -1, bytes)."""

ANY: Final = -1
"""Wildcard for the source or the tag of a receive."""

LONG: Final = 1 << 16
"""Bytes of a message that waits until its receiver is ready: about where libraries turn to rendezvous. A shorter
one's time is its latency or that of a copy into a buffer, and to a late receiver it seems to come at once."""

INPUT: Final = "input"
"""The label of the work that waits for a step's images and hands them to the device."""

PAUSE: Final = "pause"
"""The label of a straggler's pause: a real rank's messages move meanwhile, however short the last one was."""


class Status(NamedTuple):
    """What a receive got: who sent it, under which tag, how many elements."""

    source: int
    tag: int
    count: int  # type: ignore[assignment] # tuple.count is nobody's loss


class Gauge(NamedTuple):
    """What an interpreter has counted on one rank since it began; native collectives are not counted."""

    time_ns: int
    messages: int
    bytes: int
    compute_ns: int
    """Inside :meth:`Comm.compute`."""
    input_ns: int
    """Of that, in work labelled :data:`INPUT`."""


class PeerLost(Exception):  # noqa: N818 - named for what happened, as the protocol does
    """The rank this operation waits for is gone; a receive from any rank tells of each that dies, once."""

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
        ...

    @property
    def size(self) -> int:
        """Number of ranks."""
        ...

    @property
    def kept(self) -> dict[Hashable, Task[Comm]]:
        """Parts that programs have split off for all times: splitting is slow, and communicators are scarce."""
        ...

    async def send(self, buffer: Array, dest: int, tag: int = 0) -> None:
        """Send ``buffer``; on return it may be changed. May wait for the receiver (rendezvous)."""
        ...

    async def recv(self, buffer: Array, source: int = ANY, tag: int = ANY) -> Status:
        """Receive at most ``buffer.size`` elements; ``Status.count`` says how many came."""
        ...

    async def exchange(self, outgoing: Array, dest: int, incoming: Array, source: int, tag: int = 0) -> Status:
        """Send and receive at once; returns the receive's status.

        Where both ends are one rank, that rank exchanges too: on another host the two wait for each other before
        long messages travel. The words for it are not counted among the messages.
        """
        ...

    async def add(self, into: Array, addend: Array) -> None:
        """Local reduction ``into += addend``: traced, costed, on the array's device."""
        ...

    async def compute(self, label: str, work: Callable[[], T]) -> T:
        """Do local ``work``: traced under ``label``, takes modelled time in simulation."""
        ...

    def start(self, work: Coroutine[Any, Any, T], *, shared_tags: bool = False) -> Task[T]:
        """Run ``work`` beside the caller.

        Ranks that start the same programs in the same order need no further care: the n-th that a program
        starts on this communicator has a tag space of its own, the same on every rank. With ``shared_tags``
        the program talks in its starter's tag space instead, so that it can meet a peer that started nothing
        (a push to a server, say).
        """
        ...

    async def split(self, color: int, key: int = 0) -> Comm:
        """The ranks that gave the same ``color``, ordered by ``key`` and then by rank. Every rank must call."""
        ...

    async def survivors(self) -> Comm:
        """The ranks that are still there, in their order: those that no :class:`PeerLost` tells of.

        All of them must call, when none of their programs needs this communicator any more. It is this
        communicator itself where nobody has died.
        """
        ...

    async def native(self, collective: str, buffer: Array, counts: Sequence[int] = ()) -> None:
        """The library's own collective, in place on ``buffer``: ``"barrier"``, or one of these.

        A sum on all ranks: ``"allreduce"``, ``"reduce_scatter allgather"``, ``"nonblocking allreduce"`` or
        ``"persistent allreduce"``. From or to rank 0: ``"broadcast"``, ``"reduce"``. By parts, of which ``counts``
        gives each rank's elements: ``"reduce_scatter"``, ``"allgather"``, ``"all_to_all"`` (equal parts only).
        Called by a main program all but the nonblocking one block the rank: what it has started there stands
        still.
        """
        ...

    def scratch(self, size: int, like: Array) -> AbstractContextManager[Array]:
        """Borrow an uninitialised array of ``size`` elements of the kind of ``like``, kept for the next borrower.

        Fresh memory costs a page fault every 4 KiB, more than the arithmetic done in it.
        """
        ...

    @property
    def memory(self) -> Memory:
        """Vectors that all ranks of this host can read; :class:`hpcdl.fabric.window.Window` exchanges them."""
        ...

    def lend(self, like: Array) -> AbstractContextManager[Array]:
        """Borrow an uninitialised vector of the size and kind of ``like`` in such memory."""
        ...

    async def meet(self, words: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Wait until all ranks are here; everybody's few ``words``, (p, words), as many on each rank.

        What any rank wrote to shared memory before is there for all after it. A main program blocks its rank.
        """
        ...

    async def get(self, into: Array, theirs: Array, peer: int) -> None:
        """Copy ``peer``'s vector ``theirs``, out of memory that it shares: traced, costed like a message."""
        ...


class Memory(Protocol):
    """Vectors that ranks of one host share; see :mod:`hpcdl.fabric.shared_memory`."""

    def allocate(self, size: int, dtype: npt.DTypeLike = np.float32) -> Array:
        """Make a vector of ``size`` zeros that others of this host can map."""
        ...

    def place(self, array: Array) -> npt.NDArray[np.int64]:
        """Where others find ``array``: numbers, the last one 0 if they cannot."""
        ...

    def map(self, place: npt.NDArray[np.int64], like: Array) -> Array:
        """Another rank's array at ``place``, of the size and kind of ``like``; ValueError if out of reach."""
        ...

    def let_go(self) -> None:
        """Forget what was mapped."""
        ...


def check_address(peer: int, tag: int, ranks: int, least: int = 0) -> None:
    """Raise ValueError for a rank or a tag that there is not; with ``least`` = ANY wildcards are fine."""
    if not least <= peer < ranks:
        raise ValueError(f"rank {peer} is not in a communicator of {ranks}")
    if not least <= tag < TAGS:
        raise ValueError(f"tag {tag} is not in 0..{TAGS - 1}")


def check_exchange(dest: int, source: int, tag: int, ranks: int) -> None:
    """Raise ValueError for ranks or a tag that there are not; no wildcards."""
    if not (0 <= dest < ranks and 0 <= source < ranks and 0 <= tag < TAGS):
        check_address(dest, tag, ranks)
        check_address(source, tag, ranks)


class Parts(list[Array]):
    """Consecutive views of one vector: each rank's part of it."""

    __slots__ = ("whole",)

    def __init__(self, whole: Array, views: Iterable[Array]) -> None:
        super().__init__(views)
        self.whole = whole

    @property
    def counts(self) -> list[int]:
        """Their lengths, in elements."""
        return [len(view) for view in self]


def partition(buffer: Array, parts: int) -> Parts:
    """Cut a vector into ``parts`` consecutive views whose lengths differ by one at most, longer ones first."""
    quotient, remainder = divmod(len(buffer), parts)
    if type(buffer) is Phantom:
        return _phantom_parts(quotient, remainder, parts, buffer.dtype.str)
    bounds = [i * quotient + min(i, remainder) for i in range(parts + 1)]
    return Parts(buffer, [buffer[lo:hi] for lo, hi in pairwise(bounds)])


@cache
def _phantom_parts(quotient: int, remainder: int, parts: int, dtype: str) -> Parts:
    """One list, of two arrays, for all ranks: a thousand ranks cut a thousand parts each."""
    views = [phantom(quotient + 1, dtype)] * remainder + [phantom(quotient, dtype)] * (parts - remainder)
    return Parts(phantom(quotient * parts + remainder, dtype), views)
