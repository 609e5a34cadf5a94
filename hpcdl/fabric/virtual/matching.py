"""MPI's matching rules between sends and receives.

Messages between two ranks in one tag space do not overtake each other (MPI 4.1, section 3.5): a receive takes
the first queued send that fits it, a send the first queued receive.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from hpcdl.fabric.comm import ANY, Array
from hpcdl.fabric.task import AnyTask

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
