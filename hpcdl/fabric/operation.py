"""The operations of a :class:`hpcdl.fabric.comm.Comm` as generators, which is what they are to an interpreter."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

P = ParamSpec("P")
T = TypeVar("T")


def operation(generator: Callable[P, Generator[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """An ``async def`` whose body may yield to the interpreter: half the cost of awaiting something that does."""
    return types.coroutine(generator)  # type: ignore[return-value]
