"""Messages of varying lengths that ranks gather: compressed gradients.

A scheme that gathers them declares ``gathers`` and defines

    async def gather(comm: Comm, table: Array, length: int, **settings) -> list[Array]

``table`` is a buffer of p x bound bytes; its first ``length`` bytes, at most bound, are this rank's message. All
ranks have the same bound. The result has the messages of all ranks, in rank order, as views of ``table``.

A message begins with a header of four words: its length in bytes with header and padding, a checksum, the
sender's rank, the length of the content. It ends at a multiple of 8 bytes, so that every content is aligned.
"""

from collections.abc import Iterable, Sequence
from typing import Final
from zlib import crc32

import numpy as np

from hpcdl.fabric.comm import Array, Comm
from hpcdl.fabric.vectors import sizes_only

HEADER: Final = 16
"""Bytes of a header: four words."""
ALIGNMENT: Final = 8
MAX_LENGTH: Final = (1 << 32) - 1
"""Most bytes of a message."""


def padded(content: int) -> int:
    """Return the length of a message (bytes) with ``content`` bytes of content."""
    return HEADER + -(-content // ALIGNMENT) * ALIGNMENT


def seal(message: Array, content: int, sender: int) -> int:
    """Write the header of a message whose content is in place; return its length (bytes).

    Raises ValueError for a message longer than 4 GiB.
    """
    length = enclose(message, content)
    header = message[:HEADER].view(np.uint32)
    header[2] = sender
    header[1] = _checksum(message, length)
    return length


def enclose(bundle: Array, content: int) -> int:
    """Write a header, without a checksum, before messages that travel together; return the length (bytes).

    Raises ValueError for more than 4 GiB.
    """
    length = padded(content)
    if length > MAX_LENGTH:
        raise ValueError(
            f"a message of {length} bytes: at most {MAX_LENGTH} can be sent; cut the gradient into buckets"
        )
    bundle[HEADER + content : length] = 0
    bundle[:HEADER].view(np.uint32)[:] = length, 0, 0, content
    return length


def opened(message: Array, sender: int) -> Array:
    """Return the content of a message of rank ``sender``.

    Raises ValueError, naming the sender, if the message is truncated, corrupt or of another rank.
    """
    if len(message) < HEADER:
        raise ValueError(f"message of rank {sender}: truncated to {len(message)} bytes, less than a header")
    length, checksum, told, content = message[:HEADER].view(np.uint32).tolist()
    if length != len(message) or padded(content) != length:
        raise ValueError(
            f"message of rank {sender}: corrupt: {len(message)} bytes, {length} according to its header"
        )
    if told != sender:
        raise ValueError(f"message of rank {sender}: corrupt: its header names rank {told}")
    if checksum != _checksum(message, length):
        raise ValueError(f"message of rank {sender}: corrupt: its checksum differs")
    return message[HEADER : HEADER + content]


def sender_of(message: Array) -> int:
    """Return the rank that the header of a message names."""
    return int(message[:HEADER].view(np.uint32)[2])


def _checksum(message: Array, length: int) -> int:
    header = message[:HEADER].view(np.uint32)
    words = np.array([length, header[2], header[3]], np.uint32)
    return crc32(message[HEADER:length].data, crc32(words.data))


def cut(arrived: Array, count: int, source: int) -> list[Array]:
    """Cut what arrived from rank ``source`` into ``count`` messages, by their headers.

    Size-only ones are equally long. Raises ValueError, naming the rank, for lengths that do not fit.
    """
    if sizes_only(arrived):
        share = len(arrived) // count
        return [arrived[i * share : (i + 1) * share] for i in range(count)]
    messages, begin = [], 0
    for _ in range(count):
        if begin + HEADER > len(arrived):
            raise ValueError(f"message from rank {source}: truncated to {len(arrived)} bytes")
        length = int(arrived[begin : begin + HEADER].view(np.uint32)[0])
        if length < HEADER or length % ALIGNMENT or begin + length > len(arrived):
            raise ValueError(f"message from rank {source}: corrupt: a length of {length} in {len(arrived)} bytes")
        messages.append(arrived[begin : begin + length])
        begin += length
    if begin != len(arrived):
        raise ValueError(f"message from rank {source}: corrupt: {len(arrived) - begin} bytes too many")
    return messages


def doubling(size: int) -> list[tuple[int, int]]:
    """Return the rounds of :func:`gather_vectors` for ``size`` ranks with the distances 1, 2, 4, ..."""
    distances = [1 << number for number in range((size - 1).bit_length())]
    return [(distance, min(distance, size - distance)) for distance in distances]


async def gather_vectors(
    comm: Comm, table: Array, edges: Sequence[int], rounds: Iterable[tuple[int, int]]
) -> None:
    """Gather vectors in rounds (distance, vectors): those of the ranks rank, rank + 1, ... fill ``table``. Any p.

    In each round a rank sends its first ``vectors`` vectors to the rank at ``distance`` below, and receives as
    many, which are of the ranks from ``distance`` above on (Bruck et al. 1997). ``edges``: bounds of the vectors.
    """
    for distance, vectors in rounds:
        to, source = (comm.rank - distance) % comm.size, (comm.rank + distance) % comm.size
        await comm.exchange(
            table[: edges[vectors]], to, table[edges[distance] : edges[distance + vectors]], source
        )


async def gather_in_rounds(
    comm: Comm, table: Array, length: int, rounds: Iterable[tuple[int, int]]
) -> list[Array]:
    """Gather messages, whose lengths a receiver does not know, in the rounds of :func:`gather_vectors`. Any p."""
    size, rank = comm.size, comm.rank
    bound = len(table) // size
    known, ends = [table[:length]], [length]
    for distance, messages in rounds:
        source = (rank + distance) % size
        space = table[ends[-1] : ends[-1] + messages * bound]
        status = await comm.exchange(table[: ends[messages - 1]], (rank - distance) % size, space, source)
        arrived = cut(space[: status.count], messages, source)
        known += arrived
        for message in arrived:
            ends.append(ends[-1] + len(message))
    return known[size - rank :] + known[: size - rank]


async def transfer(comm: Comm, message: Array | None, dest: int, inbox: Array | None, source: int) -> Array:
    """Send a message, receive one, or both at once; return the part of ``inbox`` that arrived."""
    if message is not None and inbox is not None:
        status = await comm.exchange(message, dest, inbox, source)
    elif inbox is not None:
        status = await comm.recv(inbox, source, tag=0)
    else:
        if message is not None:
            await comm.send(message, dest)
        return np.empty(0, np.uint8)
    return inbox[: status.count]
