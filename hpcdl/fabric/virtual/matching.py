"""MPI's matching rules between sends and receives.

Messages between two ranks in one tag space do not overtake each other (MPI 4.1, section 3.5): a receive takes
the first queued send that fits it, a send the first queued receive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpcdl.fabric.comm import ANY, Array

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpcdl.fabric.task import Task


class Post:
    """One half of a message, a send or a receive, that waits for the other half."""

    __slots__ = ("buffer", "number", "peer", "rank", "tag", "task")

    def __init__(self, task: Task[Any], rank: int, peer: int, tag: int, buffer: Array) -> None:
        self.task = task
        self.rank = rank
        self.peer = peer
        self.tag = tag
        self.buffer = buffer
        self.number = 0
        """In the order in which a mailbox got its posts."""

    def __str__(self) -> str:
        peer = "any rank" if self.peer == ANY else f"rank {self.peer}"
        tag = "any tag" if self.tag == ANY else f"tag {self.tag}"
        return f"{peer}, {tag}, {self.buffer.size} elements"


Queues = dict[tuple[int, int], list[Post]]
"""By rank and tag, each in the order of posting; none is empty."""


class Mailbox:
    """Sends to one rank, and its receives, in one tag space."""

    __slots__ = ("_open", "_posted", "receives", "sends")

    def __init__(self) -> None:
        self.sends: Queues = {}
        """By the rank that sends."""
        self.receives: Queues = {}
        """By source, which may be any rank, and by tag."""
        self._posted = 0
        self._open = 0
        """Number of receives with a wildcard."""

    def take_receive(self, send: Post) -> Post | None:
        """Take out the receive that ``send`` meets; None keeps the send."""
        key = rank, tag = send.rank, send.tag
        if self._open:
            keys = key, (rank, ANY), (ANY, tag), (ANY, ANY)
            receive = _take_first(self.receives, [key for key in keys if key in self.receives])
            if receive is not None and ANY in (receive.peer, receive.tag):
                self._open -= 1
        else:
            receive = _take(self.receives, key)
        if receive is None:
            self._hold(self.sends, key, send)
        return receive

    def take_send(self, receive: Post) -> Post | None:
        """Take out the send that ``receive`` meets; None keeps the receive."""
        key = peer, tag = receive.peer, receive.tag
        is_open = ANY in key
        if is_open:
            keys = [(rank, t) for rank, t in self.sends if peer in (ANY, rank) and tag in (ANY, t)]
            send = _take_first(self.sends, keys)
        else:
            send = _take(self.sends, key)
        if send is None:
            self._open += is_open
            self._hold(self.receives, key, receive)
        return send

    def posts(self) -> Iterator[tuple[str, Post]]:
        """Yield all waiting posts as (description, post), in the order of posting."""
        for doing, queues in (("sends to", self.sends), ("receives from", self.receives)):
            waiting = [post for queue in queues.values() for post in queue]
            yield from ((doing, post) for post in sorted(waiting, key=lambda post: post.number))

    def forget(self, task: Task[Any]) -> None:
        """Withdraw what ``task`` has posted."""
        for queues in (self.sends, self.receives):
            for key in list(queues):
                queues[key] = [post for post in queues[key] if post.task is not task]
                if not queues[key]:
                    del queues[key]
        self._open = sum(len(queue) for key, queue in self.receives.items() if ANY in key)

    def _hold(self, queues: Queues, key: tuple[int, int], post: Post) -> None:
        self._posted += 1
        post.number = self._posted
        if key in queues:
            queues[key].append(post)
        else:
            queues[key] = [post]


def _take(queues: Queues, key: tuple[int, int]) -> Post | None:
    """Take out the first post under ``key``."""
    queue = queues.pop(key, None)
    if queue is None:
        return None
    post = queue.pop(0)
    if queue:
        queues[key] = queue
    return post


def _take_first(queues: Queues, keys: list[tuple[int, int]]) -> Post | None:
    """Take out the first post under any of ``keys``, all of which exist."""
    return _take(queues, min(keys, key=lambda key: queues[key][0].number)) if keys else None


def deliver(send: Post, receive: Post) -> None:
    """Copy the message.

    Raises ValueError when it is longer than the receiver's buffer or of another type.
    """
    if send.buffer.size > receive.buffer.size:
        raise ValueError(
            f"a message of {send.buffer.size} elements from rank {send.rank} does not fit "
            f"the {receive.buffer.size} that rank {receive.rank} has room for"
        )
    if send.buffer.dtype != receive.buffer.dtype:
        raise ValueError(
            f"rank {send.rank} sent {send.buffer.dtype}, rank {receive.rank} expected {receive.buffer.dtype}"
        )
    receive.buffer[: send.buffer.size] = send.buffer
