"""MPI's matching rules between sends and receives.

Messages between two ranks in one tag space do not overtake each other (MPI 4.1, section 3.5): a receive takes
the first queued send that fits it, a send the first queued receive.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from hpcdl.fabric.comm import ANY, Array

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpcdl.fabric.task import Task


class Post:
    """One half of a message, a send or a receive, that waits for the other half."""

    __slots__ = ("buffer", "following", "number", "peer", "rank", "tag", "task")

    def __init__(self, task: Task[Any], number: int, rank: int, peer: int, tag: int, buffer: Array) -> None:
        self.task = task
        self.rank = rank
        self.peer = peer
        self.tag = tag
        self.buffer = buffer
        self.number = number
        """In the order of posting."""
        self.following: deque[Post] | None = None
        """Later posts under the same key, of the first one."""

    def __str__(self) -> str:
        peer = "any rank" if self.peer == ANY else f"rank {self.peer}"
        tag = "any tag" if self.tag == ANY else f"tag {self.tag}"
        return f"{peer}, {tag}, {self.buffer.size} elements"


Queues = dict[tuple[int, int], Post]
"""The first post by rank and tag."""


class Mailbox:
    """Sends to one rank, and its receives, in one tag space."""

    __slots__ = ("open", "receives", "sends")

    def __init__(self) -> None:
        self.sends: Queues = {}
        """By the rank that sends."""
        self.receives: Queues = {}
        """By source and tag."""
        self.open: list[Post] = []
        """Receives with a wildcard, in the order of posting."""

    def take_receive(self, rank: int, tag: int) -> Post | None:
        """Take out the receive that a send of ``rank`` meets."""
        first = self.receives.get((rank, tag))
        for place, post in enumerate(self.open):
            if first is not None and first.number < post.number:
                break
            if post.peer in (ANY, rank) and post.tag in (ANY, tag):
                return self.open.pop(place)
        return None if first is None else take(self.receives, (rank, tag))

    def take_send(self, source: int, tag: int) -> Post | None:
        """Take out the send that a receive from ``source`` meets; one of both is a wildcard."""
        keys = [(rank, t) for rank, t in self.sends if source in (ANY, rank) and tag in (ANY, t)]
        return take(self.sends, min(keys, key=lambda key: self.sends[key].number)) if keys else None

    def posts(self) -> Iterator[tuple[str, Post]]:
        """Yield all waiting posts as (description, post), in the order of posting."""
        sends, receives = (
            [post for first in queues.values() for post in (first, *(first.following or ()))]
            for queues in (self.sends, self.receives)
        )
        for doing, waiting in (("sends to", sends), ("receives from", [*receives, *self.open])):
            yield from ((doing, post) for post in sorted(waiting, key=lambda post: post.number))

    def forget(self, task: Task[Any]) -> None:
        """Withdraw what ``task`` has posted."""
        waiting = [(doing, post) for doing, post in self.posts() if post.task is not task]
        for queues in (self.sends, self.receives):
            queues.clear()
        self.open = [post for post in self.open if post.task is not task]
        for doing, post in waiting:
            post.following = None
            if doing == "sends to":
                hold(self.sends, (post.rank, post.tag), post)
            elif post not in self.open:
                hold(self.receives, (post.peer, post.tag), post)


def hold(queues: Queues, key: tuple[int, int], post: Post) -> None:
    """Keep ``post`` until its other half comes."""
    first = queues.setdefault(key, post)
    if first is not post:
        if first.following is None:
            first.following = deque()
        first.following.append(post)


def take(queues: Queues, key: tuple[int, int]) -> Post | None:
    """Take out the first post under ``key``."""
    post = queues.pop(key, None)
    if post is not None and post.following:
        following = post.following.popleft()
        following.following = post.following
        queues[key] = following
    return post


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
