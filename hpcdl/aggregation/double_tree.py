from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from hpcdl.aggregation.segments import segmented

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from hpcdl.fabric.comm import Array, Comm


async def double_tree(comm: Comm, buffer: Array, *, segment_bytes: int = 65536) -> None:
    r"""Two binary trees sum half of the vector each, in segments, and send it back. Any p.

    ::

        0____                ____5      Who has children in one tree is a leaf of the other, so that every port
             4              1           works all the time, where in one tree the leaves' idle (Sanders, Speck
           /   \          /   \         & Traff 2009; NCCL 2.4). Odd nodes are leaves; the second tree is the
          2     5        0     3        first read backwards or, where p is odd, moved on by one rank.
         / \                  / \
        1   3                2   4

    A ring's bandwidth, nearly, and a latency that grows with log2(p). Beyond two ranks the trees wait for each
    other's messages, and no closed form of the time is known; the simulation, where a port takes one message after
    the other, keeps it within these bounds. 4*k*(p - 1)/p*m at least: so many messages pass through the mean port.
    (4*ceil(log2(p)) + 6*(k - 1))*(m + g) at most: the first segments take two messages a level, up and down; after
    that a rank gets two and sends two for each segment, and two of its other tree may come first. That is
    what simulations of up to 64 ranks show, unproven.

    k = max(1, ceil(n/(2*segment_bytes)))
    m = alpha + n/(2*k)*beta
    g = n/(2*k)*gamma
    Messages, all ranks: 4*k*(p - 1)
    Bytes, all ranks: 2*n*(p - 1)
    Time, p == 1: 0
    Time, p == 2: 2*k*m + k*g

    Raises ValueError if ``segment_bytes`` is less than 8.
    """
    halves = segmented(buffer, 2, segment_bytes)
    if comm.size == 1:
        return
    second, _ = _second_place(comm.rank, comm.size)
    beside = comm.start(_sum_in_tree(comm, halves[1], second, tag=1), shared_tags=True)
    await _sum_in_tree(comm, halves[0], _place(comm.rank, comm.size), tag=0)
    await beside


async def reduce(comm: Comm, buffer: Array, *, segment_bytes: int = 65536) -> None:
    """Sum at rank 0, to which the root of the second tree also hands its half; elsewhere a part of the sum.

    k = max(1, ceil(n/(2*segment_bytes)))
    m = alpha + n/(2*k)*beta
    g = n/(2*k)*gamma
    Messages, all ranks: 2*k*(p - 1)
    Bytes, all ranks: n*(p - 1)
    Time, p == 1: 0
    Time, p == 2: m + (2*k - 1)*max(m, g) + g
    """
    await _in_both(comm, buffer, segment_bytes, _sum_up)


async def broadcast(comm: Comm, buffer: Array, *, segment_bytes: int = 65536) -> None:
    """Send rank 0's ``buffer`` to all, one half by the root of the second tree.

    k = max(1, ceil(n/(2*segment_bytes)))
    Messages, all ranks: 2*k*(p - 1)
    Bytes, all ranks: n*(p - 1)
    Time, p == 1: 0
    Time, p == 2: 2*k*alpha + n*beta
    """
    await _in_both(comm, buffer, segment_bytes, _send_down)


async def _in_both(
    comm: Comm, buffer: Array, segment_bytes: int, way: Callable[..., Coroutine[Any, Any, None]]
) -> None:
    """Go up or down both trees, which are both rooted at rank 0: the second one's root is its child."""
    halves = segmented(buffer, 2, segment_bytes)
    if comm.size == 1:
        return
    second, root = _second_place(comm.rank, comm.size)
    children = [child for child in second.children if child]
    if comm.rank == 0:
        second = _Place([], [root, *children])
    else:
        second = _Place([0] if comm.rank == root else second.parents, children)
    beside = comm.start(way(comm, halves[1], second, 1), shared_tags=True)
    await way(comm, halves[0], _place(comm.rank, comm.size), 0)
    await beside


class _Place(NamedTuple):
    parents: list[int]
    """None for the root, else one."""
    children: list[int]
    """Two at most, the one with the higher branch last."""

    def renamed(self, rank_of: Callable[[int], int]) -> _Place:
        """The same place, ranks instead of nodes."""
        return _Place([rank_of(node) for node in self.parents], [rank_of(node) for node in self.children])


def _place(node: int, size: int) -> _Place:
    """Of a node in the first tree. A node's lowest bit tells its height, 0 is the root and has one child."""
    if node == 0:
        return _Place([], [1 << (size - 1).bit_length() - 1])
    height = node & -node
    parent = node - height | 2 * height
    reach = height // 2
    children = [node - reach] if reach else []
    while node + reach >= size:
        reach //= 2  # what would stand there is not; its lower branch is
    return _Place([parent if parent < size else node - height], [node + reach, *children] if reach else children)


def _second_place(rank: int, size: int) -> tuple[_Place, int]:
    """Of a rank in the second tree, ranks instead of nodes; and its root."""
    if size % 2:
        return _place((rank - 1) % size, size).renamed(lambda node: (node + 1) % size), 1
    return _place(size - 1 - rank, size).renamed(lambda node: size - 1 - node), size - 1


async def _sum_in_tree(comm: Comm, segments: list[Array], place: _Place, tag: int) -> None:
    await _sum_up(comm, segments, place, tag)
    await _send_down(comm, segments, place, tag)


async def _sum_up(comm: Comm, segments: list[Array], place: _Place, tag: int) -> None:
    if not place.children:
        await _hand_up(comm, segments, place.parents[0], tag)
        return
    with comm.scratch(len(segments[0]), segments[0]) as inbox:
        await (_add_and_pass_up if place.parents else _add_up)(comm, segments, place, inbox, tag)


async def _send_down(comm: Comm, segments: list[Array], place: _Place, tag: int) -> None:
    if not place.children:
        await _take_in(comm, segments, place.parents[0], tag)
        return
    await (_pass_down if place.parents else _hand_down)(comm, segments, place, tag)


async def _hand_up(comm: Comm, segments: list[Array], parent: int, tag: int) -> None:
    for segment in segments:
        await comm.send(segment, parent, tag)


async def _add_and_pass_up(comm: Comm, segments: list[Array], place: _Place, inbox: Array, tag: int) -> None:
    [parent], (first, *others) = place
    await _add_from(comm, segments[0], place.children, inbox, tag)
    for added, segment in pairwise(segments):
        arriving = inbox[: len(segment)]
        await comm.exchange(added, parent, arriving, first, tag)
        await comm.add(segment, arriving)
        await _add_from(comm, segment, others, inbox, tag)
    await comm.send(segments[-1], parent, tag)


async def _add_up(comm: Comm, segments: list[Array], place: _Place, inbox: Array, tag: int) -> None:
    for segment in segments:
        await _add_from(comm, segment, place.children, inbox, tag)


async def _add_from(comm: Comm, segment: Array, children: list[int], inbox: Array, tag: int) -> None:
    for child in children:
        await comm.recv(inbox[: len(segment)], child, tag)
        await comm.add(segment, inbox[: len(segment)])


async def _hand_down(comm: Comm, segments: list[Array], place: _Place, tag: int) -> None:
    for segment in segments:
        for child in place.children:
            await comm.send(segment, child, tag)


async def _pass_down(comm: Comm, segments: list[Array], place: _Place, tag: int) -> None:
    [parent], (*others, last) = place
    await comm.recv(segments[0], parent, tag)
    for arrived, segment in pairwise(segments):
        for child in others:
            await comm.send(arrived, child, tag)
        await comm.exchange(arrived, last, segment, parent, tag)
    for child in place.children:
        await comm.send(segments[-1], child, tag)


async def _take_in(comm: Comm, segments: list[Array], parent: int, tag: int) -> None:
    for segment in segments:
        await comm.recv(segment, parent, tag)
