"""Vectors that programs exchange: size-only ones, parts, out-of-place pairs, a pool of buffers, and windows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache, cached_property, lru_cache
from itertools import accumulate, pairwise
from typing import Any, ClassVar, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from hpcdl.fabric.comm import Array, Comm

SHORT_BYTES: Final = 65536
"""Vectors up to this size are prepared for their next use, because a message takes as long as Python's steps."""

_MAX_SHORT_PARTS: Final = 32
_short_parts: dict[tuple[int, int], Parts] = {}
"""Parts of short vectors that have memory of their own, by identity, which is theirs while they are here."""


class Phantom(np.ndarray[tuple[int, ...], np.dtype[np.generic]]):
    """A size-only payload for simulation: an array that has a size and takes no memory.

    Programs treat it like any other array, as on PyTorch's meta device: what they write is dropped, and copies,
    views and concatenations have sizes only.
    """

    __slots__ = ("_views", "nbytes", "size")

    unequal: ClassVar[set[int] | None] = None
    """If a set, all parts are as long as the longest, also beyond the end; it gets lengths with unequal ones."""

    def __array_finalize__(self, _made_from: object) -> None:
        """Keep the sizes, which every message reads, and slices: numpy takes long to make them."""
        self.size, self.nbytes = super().size, super().nbytes  # type: ignore[misc]
        self._views: dict[tuple[Any, Any, Any], Any] = {}

    def _unchanged(self, _operand: object) -> Self:
        return self

    __iadd__ = __isub__ = __imul__ = __itruediv__ = _unchanged

    def copy(self, order: object = "C") -> Self:  # noqa: ARG002
        return self

    def view(self, dtype: npt.DTypeLike) -> Array:  # type: ignore[override] # numpy's other forms have no use here
        """Return as many bytes as another type's elements."""
        return phantom(self.nbytes // np.dtype(dtype).itemsize, np.dtype(dtype))

    def __getitem__(self, index: Any) -> Any:
        """Return a view."""
        if type(index) is not slice:
            return super().__getitem__(index)
        if Phantom.unequal is not None and self.ndim == 1 and (index.stop or 0) > self.size:
            Phantom.unequal.add(self.size)
            return phantom(index.stop - (index.start or 0), self.dtype)
        key = (index.start, index.stop, index.step)
        if key not in self._views:
            self._views[key] = super().__getitem__(index)
        return self._views[key]

    def __setitem__(self, _index: object, _values: object) -> None:
        """Do nothing: there are no elements to write."""

    def __array_function__(self, function: Any, types: Any, arguments: Any, settings: Any) -> object:
        """Make size-only arrays where numpy would make arrays of values."""
        if function is np.concatenate and self.ndim == 1:
            return phantom(sum(map(len, arguments[0])), self.dtype)
        if function in (np.empty_like, np.zeros_like):
            return phantom(settings["shape"], self.dtype) if "shape" in settings else self
        return super().__array_function__(function, types, arguments, settings)


@contextmanager
def equal_parts() -> Iterator[set[int]]:
    """Make all parts of size-only vectors as long as the longest; return lengths of vectors with unequal ones."""
    Phantom.unequal = set()
    try:
        yield Phantom.unequal
    finally:
        Phantom.unequal = None


@lru_cache(maxsize=1 << 16)
def phantom(size: int, dtype: npt.DTypeLike = np.float32) -> Array:
    """Return a size-only vector of ``size`` elements (stride 0, read-only)."""
    # stride 0: all elements are one number, so that any size takes no memory
    return np.broadcast_to(np.zeros((), dtype), (size,)).view(Phantom)


class Parts(list[Array]):
    """Consecutive views of one vector: each rank's part of it."""

    def __init__(self, whole: Array, views: Iterable[Array]) -> None:
        super().__init__(views)
        self.whole = whole

    @cached_property
    def begins(self) -> list[int]:
        """Index of the first element of each part, and the end of the vector."""
        return list(accumulate(map(len, self), initial=0))

    @property
    def counts(self) -> list[int]:
        """Lengths of the parts, in elements."""
        return [len(view) for view in self]


def partition(buffer: Array, parts: int) -> Parts:
    """Cut a vector into ``parts`` consecutive views whose lengths differ by one at most, longer ones first.

    The list is for reading only: the next call for a short vector may return the same one.
    """
    if (known := _short_parts.get((id(buffer), parts))) is not None:
        return known
    quotient, remainder = divmod(len(buffer), parts)
    if type(buffer) is Phantom:
        if remainder and Phantom.unequal is not None:
            Phantom.unequal.add(len(buffer))
            quotient, remainder = quotient + 1, 0
        return _phantom_parts(quotient, remainder, parts, buffer.dtype.str)
    made = Parts(buffer, [buffer[part] for part in _slices(quotient, remainder, parts)])
    if buffer.nbytes <= SHORT_BYTES and not isinstance(getattr(buffer, "base", None), np.ndarray):
        if len(_short_parts) >= _MAX_SHORT_PARTS:
            _short_parts.clear()
        _short_parts[id(buffer), parts] = made
    return made


@lru_cache(maxsize=256)  # a training cuts the same few lengths in every step
def _slices(quotient: int, remainder: int, parts: int) -> tuple[slice, ...]:
    bounds = [i * quotient + min(i, remainder) for i in range(parts + 1)]
    return tuple(slice(lo, hi) for lo, hi in pairwise(bounds))


@cache
def _phantom_parts(quotient: int, remainder: int, parts: int, dtype: str) -> Parts:
    """Return one list, of two arrays, for all ranks: a thousand ranks cut a thousand parts each."""
    views = [phantom(quotient + 1, dtype)] * remainder + [phantom(quotient, dtype)] * (parts - remainder)
    return Parts(phantom(quotient * parts + remainder, dtype), views)


class Blocks(NamedTuple):
    """Operands of an all-to-all with counts: a block for each destination, and room for the block of each source.

    Stands for a vector in :meth:`hpcdl.fabric.comm.Comm.native`.
    """

    outgoing: Parts
    incoming: Parts

    @property
    def nbytes(self) -> int:
        """Bytes of the longer one of the two vectors."""
        return max(self.outgoing.whole.nbytes, self.incoming.whole.nbytes)

    def exchanged_bytes(self, rank: int) -> int:
        """Return the bytes that ``rank`` sends to others or receives from them, whichever is more."""
        return max(parts.whole.nbytes - parts[rank].nbytes for parts in self)


def blocks_of(vector: Array, counts: Iterable[int]) -> Parts:
    """Cut a vector into consecutive views of the given lengths, which are ints."""
    if type(vector) is Phantom:
        return Parts(vector, [phantom(count, vector.dtype.str) for count in counts])
    return Parts(vector, [vector[begin:end] for begin, end in pairwise(accumulate(counts, initial=0))])


def assign(into: Array, values: Array | float) -> None:
    """Write ``values``, a vector of the same length or one number, into ``into``."""
    into[:] = values


class OutOfPlace(NamedTuple):
    """Operand and result of an out-of-place collective, given to :meth:`hpcdl.fabric.comm.Comm.native`.

    Both have the same length and type. The operand keeps its values. MPI_Bcast takes one vector: rank 0 copies its
    operand into the result first.
    """

    operand: Array
    result: Array

    @property
    def nbytes(self) -> int:
        """Bytes of one of the two."""
        return self.result.nbytes


def operand_and_result(vector: Array | OutOfPlace) -> tuple[Array | None, Array]:
    """Return the vector that a collective reads, None if in place, and the vector that it writes."""
    return vector if isinstance(vector, OutOfPlace) else (None, vector)


def empty(size: int, like: Array) -> Array:
    """Return an uninitialised vector of the type of ``like``, size-only if ``like`` is."""
    return np.empty_like(like, shape=size)  # dispatched to the array's own library


def sizes_only(vector: Array) -> bool:
    """Return True if a vector has a size and no values."""
    return type(vector) is Phantom


def no_bytes(vector: Array) -> Array:
    """Return an empty buffer on the host for messages about ``vector``: a size-only one if it is."""
    return phantom(0, np.uint8) if sizes_only(vector) else np.empty(0, np.uint8)


class BufferPool:
    """Pool of arrays by type and size; ``make(size, like)`` makes a new one."""

    def __init__(self, make: Callable[[int, Array], Array] = empty) -> None:
        self._make = make
        self._free = defaultdict[tuple[type, np.dtype[Any], int], list[_Borrowed]](list)

    def borrow(self, size: int, like: Array) -> _Borrowed:
        free = self._free[type(like), like.dtype, size]
        return free.pop() if free else _Borrowed(self._make(size, like), free)


class _Borrowed:
    __slots__ = ("_array", "_free")

    def __init__(self, array: Array, free: list[_Borrowed]) -> None:
        self._array = array
        self._free = free

    def __enter__(self) -> Array:
        return self._array

    def __exit__(self, *_exception: object) -> None:
        self._free.append(self)


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
