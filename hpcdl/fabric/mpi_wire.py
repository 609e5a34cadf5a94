"""MPI messages as a transport wants them: begun, and asked about later."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpi4py import MPI

from hpcdl.fabric.comm import ANY, TAGS, Status
from hpcdl.fabric.pipeline import NUMBERS

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpcdl.fabric.comm import Array
    from hpcdl.fabric.pipeline import Wait, Words


class MpiWire:
    """See :class:`hpcdl.fabric.pipeline.Wire`.

    First messages go where ``post_send`` and ``post_receive`` put those of the running program; what follows them
    travels on ``rests``, a communicator of its own, under the number as its tag.
    """

    def __init__(
        self,
        post_send: Callable[[Array, int, int], Wait],
        post_receive: Callable[[Array, int, int, MPI.Status], Wait],
        rests: MPI.Intracomm,
    ) -> None:
        self._post_send = post_send
        self._post_receive = post_receive
        self._rests = rests
        self._given = [0] * rests.size
        self._begun = [0] * rests.size

    def number(self, dest: int) -> int:
        """See :class:`hpcdl.fabric.pipeline.Wire`."""
        number = self._given[dest]
        self._given[dest] = (number + 1) % NUMBERS
        return number

    def is_next(self, dest: int, number: int) -> bool:
        """See :class:`hpcdl.fabric.pipeline.Wire`."""
        return self._begun[dest] == number

    def send(self, words: Array, dest: int, tag: int) -> Wait:
        """See :class:`hpcdl.fabric.pipeline.Wire`."""
        self._begun[dest] = (self._begun[dest] + 1) % NUMBERS
        return self._post_send(words, dest, tag)

    def receive(self, words: Array, source: int, tag: int) -> tuple[Wait, Callable[[], Status]]:
        """See :class:`hpcdl.fabric.pipeline.Wire`."""
        status = MPI.Status()
        arrived = once(self._post_receive(words, MPI.ANY_SOURCE if source == ANY else source, tag, status))
        return arrived, lambda: Status(status.source, status.tag % TAGS, status.count)

    def send_rest(self, words: Words, dest: int, number: int) -> Wait:
        """See :class:`hpcdl.fabric.pipeline.Wire`."""
        return once(self._rests.Isend(words, dest, number).Test)

    def receive_rest(self, words: Words, source: int, number: int) -> Wait:
        """See :class:`hpcdl.fabric.pipeline.Wire`."""
        return once(self._rests.Irecv(words, source, number).Test)


def once(test: Callable[[], bool]) -> Wait:
    """Return a wait that no more tests a request once it is over: that would wipe its status out."""
    over = False

    def wait() -> bool:
        nonlocal over
        over = over or test()
        return over

    return wait
