"""A rank that dies, and what that means to the others where all ranks are coroutines of one process.

As under MPI (:mod:`hpcdl.fabric.mpi_failure`): an operation that needs the dead rank raises PeerLost, a receive
from any rank does so once for each death, and all else goes on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcdl.fabric.comm import ANY, PeerLost

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hpcdl.fabric.matching import Mailbox
    from hpcdl.fabric.task import Task


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Who dies, and before which of its steps. ValueError: a step that there is not."""

    rank: int
    step: int

    def __post_init__(self) -> None:
        if self.step < 0:
            raise ValueError(f"step: must be at least 0, not {self.step}")

    def __str__(self) -> str:
        return f"rank {self.rank} at step {self.step}"


class Died(Exception):  # noqa: N818 - says what has happened
    """The rank that raises this is no more, nor is anything that it has started."""


class Losses:
    """The dead among the members of a communicator, and who has been told of them."""

    def __init__(self, members: tuple[int, ...]) -> None:
        self._members = members
        self.dead: list[int] = []
        """In the order of their deaths."""
        self._told: dict[tuple[int, bool], int] = {}

    def of(self, peers: Iterable[int], receiver: int, *, started: bool) -> PeerLost | None:
        """What stands in the way of an operation with ``peers``, among whom may be anybody; None if nothing does.

        A rank's main program and what it has started are told of a death each.
        """
        for peer in peers:
            if peer in self.dead:
                return PeerLost(self._members[peer])
        told = self._told.get((receiver, started), 0)
        if ANY not in peers or told == len(self.dead):
            return None
        self._told[receiver, started] = told + 1
        return PeerLost(self._members[self.dead[told]])

    def withdraw(self, mailbox: Mailbox) -> list[tuple[Task[object], PeerLost]]:
        """Take out of a mailbox what the dead have posted and what needs them; who is to be told, and what."""
        disappointed = []
        for _, post in list(mailbox.posts()):
            if post.rank in self.dead:
                mailbox.forget(post.task)
            elif (loss := self.of((post.peer,), post.rank, started=post.task.space != 0)) is not None:
                mailbox.forget(post.task)
                disappointed.append((post.task, loss))
        return disappointed
