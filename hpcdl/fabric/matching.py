"""MPI's matching rules: which send meets which receive.

Messages between two ranks in one tag space do not overtake each other (MPI 4.1, section 3.5): a receive takes
the first queued send that fits it, a send the first queued receive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpcdl.fabric.comm import ANY, Array, Task

if TYPE_CHECKING:
    from collections.abc import Iterator


class Post:
    """One half of a message, a send or a receive, that waits for the other half."""

    __slots__ = ("buffer", "peer", "rank", "tag", "task")

    def __init__(self, task: Task[Any], rank: int, peer: int, tag: int, buffer: Array) -> None:
        self.task = task
        self.rank = rank
        self.peer = peer
        self.tag = tag
        self.buffer = buffer

    def __str__(self) -> str:
        peer = "anybody" if self.peer == ANY else f"rank {self.peer}"
        tag = "any tag" if self.tag == ANY else f"tag {self.tag}"
        return f"{peer}, {tag}, {self.buffer.size} elements"


class Mailbox:
    """Sends to one rank, and its receives, in one tag space; both in the order in which they were posted."""

    __slots__ = ("receives", "sends")

    def __init__(self) -> None:
        self.sends: list[Post] = []
        self.receives: list[Post] = []

    def take_receive(self, send: Post) -> Post | None:
        """Take out the receive that ``send`` meets; None queues the send."""
        for i, receive in enumerate(self.receives):
            if receive.peer in (ANY, send.rank) and receive.tag in (ANY, send.tag):
                del self.receives[i]
                return receive
        self.sends.append(send)
        return None

    def take_send(self, receive: Post) -> Post | None:
        """Take out the send that ``receive`` meets; None queues the receive."""
        for i, send in enumerate(self.sends):
            if receive.peer in (ANY, send.rank) and receive.tag in (ANY, send.tag):
                del self.sends[i]
                return send
        self.receives.append(receive)
        return None

    def posts(self) -> Iterator[tuple[str, Post]]:
        """All that wait, as (what it does, post)."""
        for post in self.sends:
            yield "sends to", post
        for post in self.receives:
            yield "receives from", post

    def forget(self, task: Task[Any]) -> None:
        """Withdraw what ``task`` has posted."""
        self.sends = [post for post in self.sends if post.task is not task]
        self.receives = [post for post in self.receives if post.task is not task]


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
