"""Receives of any tag of one program, which MPI cannot express where a message's tag also says whose it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpi4py import MPI

from hpcdl.fabric.comm import ANY, TAGS

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array
    from hpcdl.fabric.pipeline import Wait


class AnyTag:
    """Draws messages out of a communicator until one is for the program that asks.

    Tags on the wire are a program's tag space x :data:`hpcdl.fabric.comm.TAGS` + its own tag. Once somebody has
    drawn, what was drawn for others must be asked for here, whatever its tag.
    """

    def __init__(self, communicator: MPI.Intracomm) -> None:
        self.strays: list[tuple[int, int, int, MPI.Message]] = []
        """Messages (space, source, tag, message) that wait, in order, for the programs they are for."""
        self._communicator = communicator

    def receive(self, buffer: Array, source: int, space: int, tag: int, status: MPI.Status) -> Wait:
        """Begin to receive a message of ``space``; the answer tells whether it is done, ``status`` what came."""
        request: MPI.Request | None = None

        def done() -> bool:
            nonlocal request
            while request is None:
                for i, (its_space, its_source, its_tag, message) in enumerate(self.strays):
                    if its_space == space and source in (its_source, MPI.ANY_SOURCE) and tag in (its_tag, ANY):
                        del self.strays[i]
                        request = message.Irecv(buffer)
                        break
                else:
                    found = MPI.Status()
                    drawn = self._communicator.Improbe(source, MPI.ANY_TAG, found)
                    if drawn is None:
                        return False
                    self.strays.append((found.tag // TAGS, found.source, found.tag % TAGS, drawn))
            return request.Test(status)

        return done
