"""Places in trees, and sums and broadcasts along them, pipelined by segments."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from hpcdl.fabric.comm import Array, Comm
from hpcdl.fabric.vectors import partition

_MIN_BYTES: Final = 8
"""Bytes of the longest data type that is summed."""


class Place(NamedTuple):
    """Neighbours of a node in a tree."""

    parents: list[int]
    """Empty for the root, else one rank."""
    children: list[int]

    def renamed(self, rank_of: Callable[[int], int]) -> "Place":
        """Return the place with ranks instead of nodes."""
        return Place([rank_of(node) for node in self.parents], [rank_of(node) for node in self.children])


def segmented(buffer: Array, parts: int, segment_bytes: int) -> list[list[Array]]:
    """Return ``parts`` equal parts of a vector, each as a list of segments; all lists are equally long.

    A segment has at most ``segment_bytes``, rounded up to a whole element; each part has at least one. Raises
    ValueError if ``segment_bytes`` is less than 8.
    """
    if segment_bytes < _MIN_BYTES:
        raise ValueError(f"segment_bytes = {segment_bytes}: a segment has at least {_MIN_BYTES} bytes")
    count = max(1, -(-buffer.nbytes // (parts * segment_bytes)))
    return [partition(part, count) for part in partition(buffer, parts)]


async def sum_up(comm: Comm, segments: Sequence[Array], place: Place, tag: int = 0) -> None:
    """Add the children's segments in their order; send each sum to the parent while the next segment arrives."""
    if not place.children:
        for segment in segments if place.parents else ():
            await comm.send(segment, place.parents[0], tag)
        return

    async def add_from(children: Sequence[int], segment: Array) -> None:
        for child in children:
            await comm.recv(inbox[: len(segment)], child, tag)
            await comm.add(segment, inbox[: len(segment)])

    with comm.scratch(len(segments[0]), segments[0]) as inbox:
        if not place.parents:
            for segment in segments:
                await add_from(place.children, segment)
            return
        [parent], (first, *others) = place
        await add_from(place.children, segments[0])
        for added, segment in pairwise(segments):
            await comm.exchange(added, parent, inbox[: len(segment)], first, tag)
            await comm.add(segment, inbox[: len(segment)])
            await add_from(others, segment)
        await comm.send(segments[-1], parent, tag)


async def send_down(comm: Comm, segments: Sequence[Array], place: Place, tag: int = 0) -> None:
    """Send the parent's segments to the children in their order; the next one arrives meanwhile."""
    if not (place.parents and place.children):
        for segment in segments:
            for parent in place.parents:
                await comm.recv(segment, parent, tag)
            for child in place.children:
                await comm.send(segment, child, tag)
        return
    [parent], (*others, last) = place
    await comm.recv(segments[0], parent, tag)
    for arrived, segment in pairwise(segments):
        for child in others:
            await comm.send(arrived, child, tag)
        await comm.exchange(arrived, last, segment, parent, tag)
    for child in place.children:
        await comm.send(segments[-1], child, tag)
