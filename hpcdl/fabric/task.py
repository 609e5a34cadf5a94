"""Programs under way, the operations that they wait in, and the tag spaces that keep concurrent programs apart."""

from __future__ import annotations

import types
from collections.abc import Callable, Coroutine, Generator, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, ParamSpec, TypeAlias, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
U = TypeVar("U")

Program: TypeAlias = Coroutine[Any, Any, T]
"""An algorithm that runs: what it yields, and gets back, is its interpreter's business."""

DEPTHS: Final = 8
"""Most splits between a communicator and the one of all ranks."""

LEVELS: Final = 4
"""Levels of programs: a main program, those that it starts, those that they start, and one more."""

NESTED: Final = 16
"""Most programs in flight among those that one started program has started."""


def operation(generator: Callable[P, Generator[object, Any, T]]) -> Callable[P, Program[T]]:
    """Make an ``async def`` of a generator that yields to the interpreter: half the cost of an awaited object."""
    return types.coroutine(generator)


def tag_space(starter: int, depth: int, started: int) -> int:
    """Return the tag space of the ``started``-th (from 1) program that a program started on one communicator.

    ``starter`` is the tag space of that program, ``depth`` the number of splits that made the communicator. All
    members of a communicator run the same program, so they agree on the number, whatever runs concurrently. The
    communicators of a rank form a chain, one for each depth, so the depth separates two programs that were
    started on different communicators and send on the same one.

    The lowest digit is the level, 0 for a main program; above it one pair (started, depth) for each level.
    Raises ValueError for programs nested too deep.
    """
    outer, level = divmod(starter, LEVELS)
    if level + 1 == LEVELS:
        raise ValueError(f"programs started more than {LEVELS - 1} deep")
    if level:
        started = outer * NESTED + started % NESTED
    return (started * DEPTHS + depth) * LEVELS + level + 1


@dataclass(slots=True, eq=False, repr=False)
class Task(Generic[T]):
    """A program under way; ``await task`` returns its result or raises its error."""

    coroutine: Program[T]
    space: int = 0
    """Tag space, from :func:`tag_space`; 0 for the main program of a rank."""
    started: dict[Hashable, int] = field(default_factory=dict)
    """Number of programs started on each communicator under this tag space."""
    number: int = 0
    """Number in traces, in the order in which this rank started its programs; 0 for the main program."""
    done: bool = False
    joined: bool = False
    result: T | None = None
    error: BaseException | None = None
    waiters: tuple[AnyTask, ...] = ()  # not a list: most of a million tasks have no waiter
    wait_for_end: Callable[[], None] | None = None
    """Called by an await of a done task whose end is still to come in virtual time."""

    # used by :mod:`hpcdl.fabric.virtual.world` only; a second object for each of a million tasks would cost time
    rank: int = field(init=False)
    time: float = field(init=False)
    """Its own clock, which arithmetic puts ahead of the world's."""
    answer: object = field(init=False)
    """Result of the operation that it waits in."""
    thrown: BaseException | None = field(init=False)
    """Error of the operation that it waits in."""
    waiting: int = field(init=False)
    """Number of sends and receives of the operation that have not completed."""
    arrived: float = field(init=False)
    """Time at which the last receive completed."""
    sent: float = field(init=False)
    """Time at which the last send completed."""

    def starts(self, work: Program[U], comm: Hashable, depth: int, *, shared_tags: bool) -> Task[U]:
        """Return a task for ``work``, which this program starts on ``comm``, made by ``depth`` splits."""
        if shared_tags:
            return Task(work, self.space, self.started)
        self.started[comm] = number = self.started.get(comm, 0) + 1
        return Task(work, tag_space(self.space, depth, number))

    def __await__(self) -> Generator[object, None, T]:
        self.joined = True
        if not self.done:
            yield self
        elif self.wait_for_end is not None:
            self.wait_for_end()
        if self.error is not None:
            raise self.error
        return self.result  # type: ignore[return-value]


async def join(tasks: Iterable[AnyTask | None]) -> None:
    """Wait for all tasks, one after another; None is no task."""
    for task in filter(None, tasks):
        await task


AnyTask: TypeAlias = Task[Any]
"""A program whose result doesn't matter here."""
