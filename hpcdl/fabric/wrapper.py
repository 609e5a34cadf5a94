"""A communicator that forwards every operation to another one; subclasses change some of them."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any, Generic, Self, TypeVar

from hpcdl.fabric.comm import Comm

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
