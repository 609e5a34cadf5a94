"""Messages in pieces through two slots of host memory: one piece is copied while another is sent.

::

    device  [ copy 0 ][ copy 1 ][ copy 2 ]
    wire              [ send 0 ][ send 1 ][ send 2 ]

A message begins with a header, which holds its length, and the first piece; a short message is one piece. Further
pieces are sent under a number of the sender, so that neither a wildcard nor another message of the same tag takes
them.

All functions here wait by yielding a :data:`Wait`, copy by :class:`Copies` and send by :class:`Wire`; they use
neither CUDA nor MPI.
"""

from collections.abc import Callable, Generator
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from hpcdl.fabric.comm import Array, Status

T = TypeVar("T")
U = TypeVar("U")

Wait: TypeAlias = Callable[[], bool]
"""Returns whether an operation has completed; may be called again after that."""

Flow: TypeAlias = Generator[Wait, None, T]
"""A program that yields its waits and returns a value."""

Words: TypeAlias = "npt.NDArray[np.uint8]"

HEADER: Final = 16
"""Bytes before a message: how many bytes it has, and the number of what follows, 64 bits each."""

CHUNK: Final = 2 << 20
"""Bytes of a slot without the header: a copy of so many bytes over PCIe takes ten times as long as its start."""

NUMBERS: Final = 32768
"""Messages of one sender under way to one receiver; the least range of tags in MPI."""


class Copies(Protocol):
    """Copies between an array and host memory, each queued at once after the work of the array's device."""

    chunk: int
    """Bytes of a slot without the header."""

    def borrow(self) -> tuple[Words, Words]:
        """Two slots of HEADER + chunk bytes."""

    def give_back(self, slots: tuple[Words, Words]) -> None:
        """Nothing reads or writes them any more."""

    def to_host(self, piece: Array, words: Words) -> Wait:
        """Begin to copy a piece of a flat array out."""

    def to_device(self, words: Words, piece: Array) -> Wait:
        """Begin to copy words into a piece of a flat array; the next use of the array waits for it."""


class Wire(Protocol):
    """One rank's messages. A first message has a tag as usual; what follows it has a number."""

    def number(self, dest: int) -> int:
        """A number, 0 to NUMBERS - 1, that no other message under way to ``dest`` has; they count up."""

    def is_next(self, dest: int, number: int) -> bool:
        """Return whether the first messages of all lower numbers have begun, so that none overtakes another."""

    def send(self, words: Array, dest: int, tag: int) -> Wait:
        """Begin to send a first message, whose number is next."""

    def receive(self, words: Array, source: int, tag: int) -> tuple[Wait, Callable[[], Status]]:
        """Begin to receive a first message; then the second tells who sent it, its tag and how many words came."""

    def send_rest(self, words: Words, dest: int, number: int) -> Wait:
        """Begin to send what follows; the order counts."""

    def receive_rest(self, words: Words, source: int, number: int) -> Wait:
        """Begin to receive what follows; the order counts."""


def send(wire: Wire, copies: Copies, buffer: Array, dest: int, tag: int) -> Flow[None]:
    """Send ``buffer``; on return it may be changed."""
    pieces = _pieces(buffer, copies.chunk)
    number = wire.number(dest)
    slots = copies.borrow()
    _header(slots[0])[:] = buffer.nbytes, number
    leaving: list[Wait] = [_over, _over]
    for i, piece in enumerate(pieces):
        # this slot's last piece must have left before the next is copied over it
        yield from until(leaving[i % 2])
        words = slots[i % 2][HEADER:][: piece.nbytes]
        if piece.size:
            yield from until(copies.to_host(piece, words))
        if i == 0:
            yield from until(lambda: wire.is_next(dest, number))
            leaving[0] = wire.send(slots[0][: HEADER + piece.nbytes], dest, tag)
        else:
            leaving[i % 2] = wire.send_rest(words, dest, number)
    for wait in leaving:
        yield from until(wait)
    copies.give_back(slots)


def receive(wire: Wire, copies: Copies, buffer: Array, source: int, tag: int) -> Flow[Status]:
    """Receive at most ``buffer``; the status' count is in elements.

    ValueError: the message is longer.
    """
    slots = copies.borrow()
    arrived, status = wire.receive(slots[0][: HEADER + min(buffer.nbytes, copies.chunk)], source, tag)
    yield from until(arrived)
    came = status()
    size, number = (int(value) for value in _header(slots[0]))
    if size > buffer.nbytes:
        raise ValueError(f"a message of {size} bytes from rank {came.source} into {buffer.nbytes}")
    pieces = _pieces(buffer.reshape(-1)[: size // buffer.itemsize], copies.chunk)
    landing: list[Wait] = [_over, _over]
    arrived = _over
    for i, piece in enumerate(pieces):
        yield from until(arrived)
        # post the next receive first, so that its piece arrives while this one is copied
        if i + 1 < len(pieces):
            yield from until(landing[(i + 1) % 2])
            following = slots[(i + 1) % 2][HEADER:][: pieces[i + 1].nbytes]
            arrived = wire.receive_rest(following, came.source, number)
        if piece.size:
            landing[i % 2] = copies.to_device(slots[i % 2][HEADER:][: piece.nbytes], piece)
    for wait in landing:
        yield from until(wait)
    copies.give_back(slots)
    return Status(came.source, came.tag, size // buffer.itemsize)


def both(first: Flow[T], second: Flow[U]) -> Flow[tuple[T, U]]:
    """Run two flows concurrently; return their results."""
    flows: tuple[Flow[T], Flow[U]] = (first, second)
    answers: list[Any] = [None, None]
    waits: dict[int, Wait] = {0: _over, 1: _over}
    while waits:
        yield from until(lambda: any(wait() for wait in waits.values()))
        for i in [i for i, wait in waits.items() if wait()]:
            try:
                waits[i] = next(flows[i])
            except StopIteration as stop:
                del waits[i]
                answers[i] = stop.value
    return answers[0], answers[1]


def _over() -> bool:
    return True


def until(wait: Wait) -> Flow[None]:
    """Yield ``wait`` unless it is over."""
    if not wait():
        yield wait


def _header(slot: Words) -> npt.NDArray[np.int64]:
    return slot[:HEADER].view(np.int64)


def _pieces(buffer: Array, chunk: int) -> list[Array]:
    """Return consecutive pieces of a contiguous array, one or more, of ``chunk`` bytes or less."""
    flat, step = buffer.reshape(-1), chunk // buffer.itemsize
    return [flat[start : start + step] for start in range(0, max(flat.size, 1), step)]
