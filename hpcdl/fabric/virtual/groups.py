"""Communicators of one process: members, mailboxes, collectives under way, and failed ranks."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hpcdl.fabric.comm import ANY, PeerLost
from hpcdl.fabric.task import DEPTHS, AnyTask, Task
from hpcdl.fabric.virtual.matching import Mailbox
from hpcdl.fabric.virtual.shifts import Shifts


class Failures:
    """Failed members of a communicator, and which ranks have got a PeerLost for them.

    As under MPI (:mod:`hpcdl.fabric.mpi.fault_tolerance`): an operation that needs a failed rank raises
    PeerLost, a receive from any rank does so once for each failure, and other operations succeed.
    """

    def __init__(self, members: tuple[int, ...]) -> None:
        self._members = members
        self.failed: list[int] = []
        """In the order of their failures."""
        self._reported: dict[tuple[int, bool], int] = {}

    def of(self, peers: Iterable[int], receiver: int, *, started: bool) -> PeerLost | None:
        """Return the error of an operation with ``peers``, ANY allowed; None if there is none.

        A receive from any rank raises once in the main program and once in the started programs of a rank.
        """
        for peer in peers:
            if peer in self.failed:
                return PeerLost(self._members[peer])
        reported = self._reported.get((receiver, started), 0)
        if ANY not in peers or reported == len(self.failed):
            return None
        self._reported[receiver, started] = reported + 1
        return PeerLost(self._members[self.failed[reported]])

    def withdraw(self, mailbox: Mailbox) -> list[tuple[Task[object], PeerLost]]:
        """Remove the posts of failed ranks and the posts that need them; return the latter's tasks and errors."""
        errors = []
        for _, post in list(mailbox.posts()):
            if post.rank in self.failed:
                mailbox.forget(post.task)
            elif (loss := self.of((post.peer,), post.rank, started=post.task.space != 0)) is not None:
                mailbox.forget(post.task)
                errors.append((post.task, loss))
        return errors


class Group:
    """The members of a communicator: ranks of the world in order, and the number of splits that made it."""

    __slots__ = ("depth", "divisions", "failures", "gatherings", "mailbox", "members", "places", "posted", "wild")

    def __init__(self, members: tuple[int, ...], depth: int) -> None:
        if depth >= DEPTHS:
            raise ValueError(f"communicators split more than {DEPTHS} deep")
        self.members = members
        self.depth = depth
        self.mailbox = Mailbox()
        self.wild: dict[tuple[int, int], Mailbox] = {}
        """Posts of messages to a rank in a tag space that has received by wildcards, apart from the others."""
        self.posted = 0
        """Number of posts."""
        self.gatherings: dict[tuple[int, int], Gathering] = {}
        self.failures = Failures(members)
        self.places: dict[int, tuple[Group, int]] = {}
        """Group and rank of each member of the groups that were made together; for :meth:`shifted`."""
        self.divisions: dict[Hashable, dict[int, tuple[Group, int]]] = {}
        """The ``places`` of sub-communicators."""

    def shifted(self, shifts: Shifts, rank: int, dest: int) -> tuple[Group, int, int]:
        """Return the group of the receiver that stands for ``dest``, and sender and receiver in it."""
        source, receiver = shifts.shifted(self.members[rank], self.members[dest])
        group, dest = self.places[receiver]
        return group, self.places[source][1], dest

    def mailboxes(self) -> list[Mailbox]:
        return [self.mailbox, *self.wild.values()]

    def open(self, space: int, rank: int) -> Mailbox:
        """Return the mailbox of a rank that receives by wildcards; its posts move there."""
        mailbox = self.wild.get((space, rank))
        if mailbox is None:
            mailbox = self.wild[space, rank] = Mailbox()
            for queues, moved in ((self.mailbox.sends, mailbox.sends), (self.mailbox.receives, mailbox.receives)):
                moved.update({key: queues.pop(key) for key in [*queues] if key[:2] == (space, rank)})
        return mailbox

    def tidy(self, space: int, rank: int) -> None:
        """Drop an empty mailbox of a started program: a training run starts programs by the million."""
        mailbox = self.wild.get((space, rank))
        if space and mailbox is not None and not (mailbox.sends or mailbox.receives or mailbox.open):
            del self.wild[space, rank]


@dataclass(slots=True)
class Gathering:
    """A collective that waits for its last rank; ``finish`` maps the ranks' inputs to the ranks' results."""

    what: str
    size: int
    finish: Callable[[dict[int, Any]], Mapping[int, object]]
    tasks: dict[int, AnyTask] = field(default_factory=dict)
    given: dict[int, object] = field(default_factory=dict)
