"""A communicator that forwards every operation to another one; subclasses change some of them."""

from collections.abc import Callable, Hashable
from typing import Any, Generic, Self, TypeVar

from hpcdl.fabric.comm import Comm

C = TypeVar("C", bound=Comm)

_Operations: Any = type("_Operations", (), {})
"""Base for type checkers: a wrapper has all operations of a communicator, by ``__getattr__``."""


class Wrapper(_Operations, Generic[C]):  # type: ignore[misc]
    """A :class:`hpcdl.fabric.comm.Comm` over another one, as are the communicators that are made from it."""

    def __init__(self, comm: C, *settings: Any) -> None:
        """``settings``: the subclass's further arguments, by which it wraps communicators made from ``comm``."""
        self._comm = comm
        self._settings = settings
        self.rank = comm.rank
        self.size = comm.size

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)

    def _wrap(self, comm: Any) -> Self:
        return type(self)(comm, *self._settings)

    async def split(self, color: int, key: int = 0) -> Self:
        return self._wrap(await self._comm.split(color, key))

    async def subcommunicator(self, color: Callable[[int], int], division: Hashable) -> Self:
        return self._wrap(await self._comm.subcommunicator(color, division))

    async def survivors(self) -> Self:
        return self._wrap(await self._comm.survivors())
