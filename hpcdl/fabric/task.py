"""Programs under way, and how the messages of those that run beside each other are kept apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator

    from hpcdl.fabric.comm import Comm

T = TypeVar("T")
U = TypeVar("U")


DEPTHS: Final = 8
"""How deep communicators may be split off one another."""

LEVELS: Final = 4
"""A main program starts programs, those may start others, and those again: that deep and no deeper."""

NESTED: Final = 16
"""Of the programs that a started program has started, so many may be in flight."""


def tag_space(starter: int, depth: int, started: int) -> int:
    """The tag space of the ``started``-th (from 1) program that a program started on one communicator.

    ``starter`` is that program's own space, ``depth`` tells how often the communicator was split off. All
    members of a communicator run the same program, so they agree on the number, whatever runs beside it. The
    communicators that a rank may talk on form a chain, one for each depth, so the depth keeps two programs
    apart that were started on different communicators and talk on the same one.

    The lowest digit is the level, 0 for a main program; above it one pair (started, depth) for each level.
    Raises ValueError for programs nested too deep.
    """
    outer, level = divmod(starter, LEVELS)
    if level + 1 == LEVELS:
        raise ValueError(f"programs started more than {LEVELS - 1} deep")
    if level:
        started = outer * NESTED + started % NESTED
    return (started * DEPTHS + depth) * LEVELS + level + 1


class Task(Generic[T]):
    """A program under way; ``await task`` joins it: returns what it returned or raises what it raised."""

    __slots__ = (
        "answer",
        "arrived",
        "coroutine",
        "done",
        "error",
        "joined",
        "number",
        "rank",
        "result",
        "sent",
        "space",
        "started",
        "thrown",
        "time",
        "waiters",
        "waiting",
    )

    # kept by :mod:`hpcdl.fabric.world` alone; here, for a second object for each of a million tasks costs time
    rank: int
    time: float
    """Its own, which arithmetic puts ahead of the world's."""
    answer: Any
    """What it goes on with."""
    thrown: BaseException | None
    """What it goes on with instead."""
    waiting: int
    """Halves of an exchange, or of a message, that are not over."""
    arrived: float
    """When the last receive was over."""
    sent: float
    """When the last send was over."""

    def __init__(
        self, coroutine: Coroutine[Any, Any, T], space: int = 0, started: dict[Comm, int] | None = None
    ) -> None:
        self.coroutine = coroutine
        self.space = space
        """Tag space, from :func:`tag_space`; 0 is a rank's main program's."""
        self.number = 0
        """For traces: in the order in which this rank started them, 0 being its main program's."""
        self.started = {} if started is None else started
        """How many programs have been started on each communicator under its tag space."""
        self.done = False
        self.joined = False
        self.result: T | None = None
        self.error: BaseException | None = None
        self.waiters: tuple[Task[Any], ...] = ()  # of a million tasks few are waited for: not a list each

    def starts(self, work: Coroutine[Any, Any, U], comm: Comm, depth: int, *, shared_tags: bool) -> Task[U]:
        """A task for what this program starts on ``comm``, a communicator split off ``depth`` times."""
        if shared_tags:
            return Task(work, self.space, self.started)
        self.started[comm] = number = self.started.get(comm, 0) + 1
        return Task(work, tag_space(self.space, depth, number))

    def __await__(self) -> Generator[Any, Any, T]:
        self.joined = True
        if not self.done:
            yield self
        if self.error is not None:
            raise self.error
        return self.result  # type: ignore[return-value]
