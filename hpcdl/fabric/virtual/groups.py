"""Communicators of one process: members, mailboxes, collectives under way, and failed ranks.

Sends and receives are matched by MPI's rules: messages between two ranks in one tag space do not overtake each
other (MPI 4.1, section 3.5). A receive takes the first queued send that fits it, a send the first queued receive.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hpcdl.fabric.comm import ANY, Array, PeerLost
from hpcdl.fabric.task import DEPTHS, AnyTask, Task
from hpcdl.fabric.virtual.shifts import Shifts

Entry = tuple[int, "AnyTask", int, int, int, "Array"]
"""A :class:`Post` as a mailbox keeps it: a plain tuple takes a tenth of the time to make."""


class Post(NamedTuple):
    """One half of a message, a send or a receive, that waits for the other half."""

    number: int
    """In the order of posting."""
    task: AnyTask
    rank: int
    peer: int
    tag: int
    buffer: Array

    def __str__(self) -> str:
        peer = "any rank" if self.peer == ANY else f"rank {self.peer}"
        tag = "any tag" if self.tag == ANY else f"tag {self.tag}"
        return f"{peer}, {tag}, {self.buffer.size} elements"


Key = tuple[int, int, int, int]
"""Tag space, receiver, sender and tag of a message."""

Queues = dict[Key, Entry | deque[Entry]]
"""Posts in their order; most queues have one."""


@dataclass(slots=True)
class Mailbox:
    """Posts of a communicator, or those of messages to one rank in one tag space, if it receives by wildcards."""

    sends: Queues = field(default_factory=dict)
    receives: Queues = field(default_factory=dict)
    """Those without a wildcard."""
    open: list[Entry] = field(default_factory=list)
    """Receives with a wildcard, in the order of posting."""

    def take_receive(self, key: Key) -> Entry | None:
        """Take out the receive that a send meets."""
        exact = self.receives.get(key)
        _, _, rank, tag = key
        for place, post in enumerate(self.open):
            number, _, _, source, wanted, _ = post
            if exact is not None and _entries(exact)[0][0] < number:
                break
            if source in (ANY, rank) and wanted in (ANY, tag):
                return self.open.pop(place)
        return take(self.receives, key)

    def take_send(self, source: int, tag: int) -> Entry | None:
        """Take out the send that a receive from ``source`` meets; one of both is a wildcard."""
        keys = [key for key in self.sends if source in (ANY, key[2]) and tag in (ANY, key[3])]
        return take(self.sends, min(keys, key=lambda key: _entries(self.sends[key])[0][0])) if keys else None

    def posts(self) -> Iterator[tuple[str, Post]]:
        """Yield all waiting posts as (description, post), in the order of posting."""
        sends, receives = (
            [Post(*entry) for queue in queues.values() for entry in _entries(queue)]
            for queues in (self.sends, self.receives)
        )
        receives += [Post(*entry) for entry in self.open]
        for doing, waiting in (("sends to", sends), ("receives from", receives)):
            yield from ((doing, post) for post in sorted(waiting, key=lambda post: post.number))

    def forget(self, task: AnyTask) -> None:
        """Withdraw what ``task`` has posted."""
        for queues in (self.sends, self.receives):
            for key, queue in list(queues.items()):
                kept = deque(entry for entry in _entries(queue) if entry[1] is not task)
                queues[key] = kept
                if not kept:
                    del queues[key]
        self.open = [entry for entry in self.open if entry[1] is not task]


def hold(queues: Queues, key: Key, post: Entry) -> None:
    """Keep ``post`` until its other half comes."""
    queue = queues.setdefault(key, post)
    if isinstance(queue, deque):
        queue.append(post)
    elif queue is not post:
        queues[key] = deque([queue, post])


def take(queues: Queues, key: Key) -> Entry | None:
    """Take out the first post under ``key``."""
    queue = queues.pop(key, None)
    if not isinstance(queue, deque):
        return queue
    post = queue.popleft()
    if queue:
        queues[key] = queue
    return post


def _entries(queue: Entry | deque[Entry]) -> deque[Entry]:
    return queue if isinstance(queue, deque) else deque([queue])


def deliver(rank: int, sent: Array, receiver: int, room: Array) -> None:
    """Copy a message of ``rank``.

    Raises ValueError when it is longer than the receiver's buffer or of another type.
    """
    if sent.size > room.size:
        raise ValueError(
            f"a message of {sent.size} elements from rank {rank} does not fit "
            f"the {room.size} that rank {receiver} has room for"
        )
    if sent.dtype != room.dtype:
        raise ValueError(f"rank {rank} sent {sent.dtype}, rank {receiver} expected {room.dtype}")
    room[: sent.size] = sent


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
