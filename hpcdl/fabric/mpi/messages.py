"""Messages on a communicator: programs' tag spaces in MPI's tags, wildcards among them, and messages in pieces."""

from collections.abc import Callable
from functools import partial
from typing import Final

from mpi4py import MPI

from hpcdl.fabric.comm import ANY, TAGS, Array, Status
from hpcdl.fabric.device.staged_copy import NUMBERS, Wait, Words
from hpcdl.fabric.mpi.backoff import POLLS
from hpcdl.fabric.mpi.scheduler import Scheduler
from hpcdl.fabric.vectors import SHORT_BYTES

_TAG_LIMIT: Final = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB) or 32767  # the least that MPI allows

_SPACES: Final = 1 << ((_TAG_LIMIT + 1) // TAGS).bit_length() - 1
"""A power of two, so that tag spaces with different lower digits have different MPI tags."""

PROBES_ANY_SOURCE: Final = MPI.get_vendor()[0] == "MPICH"
"""True if receives from any rank probe first: posted ones of MPICH 5.0 between hosts stay open for ever."""

_MAX_EXCHANGES: Final = 256
"""Short exchanges on one communicator whose arrays are kept."""


class Channels:
    """The communicators of one group: one for its main programs' messages, one for those of started programs.

    Main programs use their own tags. A started program's MPI tag is its tag space x
    :data:`hpcdl.fabric.comm.TAGS` + its own tag.
    """

    def __init__(self, scheduler: Scheduler, main: MPI.Intracomm) -> None:
        self._scheduler = scheduler
        self.main = main
        self.started = main.Dup()
        self._any_tag = AnyTag(self.started)

    def channel(self, tag: int = 0) -> tuple[MPI.Intracomm, int]:
        """Return the communicator and the MPI tag of the running program's messages."""
        space = self._scheduler.running.space
        if space == 0:
            return self.main, tag
        return self.started, space % _SPACES * TAGS + tag

    def receive(self, buffer: Array, source: int, tag: int, status: MPI.Status) -> Wait:
        """Post a receive; ``status`` is set when it has completed."""
        space = self._scheduler.running.space
        # A drawn message is no longer in MPI's queue, so that a posted receive would wait for it for ever.
        if space and (tag == ANY or self._any_tag.drawn):
            return self._any_tag.receive(buffer, source, space % _SPACES, tag, status)
        channel, mpi_tag = self.channel(MPI.ANY_TAG if tag == ANY else tag)
        if source == MPI.ANY_SOURCE and PROBES_ANY_SOURCE:
            return _probed(channel, buffer, mpi_tag, status)
        return partial(received, channel.Irecv(buffer, source, mpi_tag), status)


def _probed(channel: MPI.Intracomm, buffer: Array, tag: int, status: MPI.Status) -> Wait:
    """Return the wait of a receive from any rank that is posted once its message is there."""
    request: MPI.Request | None = None

    def done() -> bool:
        nonlocal request
        # A matched probe takes the message away, so that no other receive gets it before this one.
        if request is None and (message := channel.Improbe(MPI.ANY_SOURCE, tag)) is not None:
            request = message.Irecv(buffer)
        return request is not None and request.Test(status)

    return done


class RepeatedExchanges:
    """Persistent requests of a main program's short exchanges, on one communicator, from the second time on.

    An exchange is found by the identities of its arrays: to read addresses takes as long as the message. Arrays
    are kept alive, so that their identities remain theirs. ``at_end`` gets :meth:`free`.
    """

    def __init__(self, communicator: MPI.Intracomm, at_end: set[Callable[[], None]]) -> None:
        self.ready: dict[tuple[int, ...], tuple[MPI.Prequest, MPI.Prequest, Status, int]] = {}
        """Receive, send, and status and bytes of a full message, by arguments; of arrays by their identities."""
        self._arrays: dict[tuple[int, ...], tuple[Array, Array]] = {}
        self._communicator = communicator
        self._at_end = at_end

    def prepare(self, key: tuple[int, ...], outgoing: Array, incoming: Array) -> None:
        """Make the requests of an exchange that has come before; note one that has not."""
        if key in self._arrays:
            _, dest, _, source, tag = key
            receiving = self._communicator.Recv_init(incoming, source, tag)
            sending = self._communicator.Send_init(outgoing, dest, tag)
            self.ready[key] = receiving, sending, Status(source, tag, incoming.size), incoming.nbytes
        elif outgoing.nbytes <= SHORT_BYTES >= incoming.nbytes:
            if len(self._arrays) >= _MAX_EXCHANGES:
                self.free()
            self._arrays[key] = outgoing, incoming
            self._at_end.add(self.free)

    def free(self) -> None:
        for receiving, sending, *_ in self.ready.values():
            receiving.Free()
            sending.Free()
        self.ready.clear()
        self._arrays.clear()


class AnyTag:
    """Receives of any tag of one tag space, which MPI has no wildcard for.

    Messages are drawn out of the communicator until one is for the program that asks. A message that was drawn for
    another program is received from here, whatever its tag.
    """

    def __init__(self, communicator: MPI.Intracomm) -> None:
        self.drawn: list[tuple[int, int, int, MPI.Message]] = []
        """Messages (space, source, tag, message) that wait, in order, for their programs."""
        self._communicator = communicator

    def receive(self, buffer: Array, source: int, space: int, tag: int, status: MPI.Status) -> Wait:
        """Begin to receive a message of ``space``; ``status`` is set when it has completed."""
        request: MPI.Request | None = None

        def done() -> bool:
            nonlocal request
            while request is None:
                for i, (its_space, its_source, its_tag, message) in enumerate(self.drawn):
                    if its_space == space and source in (its_source, MPI.ANY_SOURCE) and tag in (its_tag, ANY):
                        del self.drawn[i]
                        request = message.Irecv(buffer)
                        break
                else:
                    probed = MPI.Status()
                    drawn = self._communicator.Improbe(source, MPI.ANY_TAG, probed)
                    if drawn is None:
                        return False
                    self.drawn.append((probed.tag // TAGS, probed.source, probed.tag % TAGS, drawn))
            return request.Test(status)

        return done


class MpiWire:
    """See :class:`hpcdl.fabric.device.staged_copy.Wire`.

    First pieces travel on the running program's channel. Further pieces travel on ``pieces``, a communicator of
    its own, with the message's number as their tag.
    """

    def __init__(self, channels: Channels, pieces: MPI.Intracomm) -> None:
        self._channels = channels
        self._pieces = pieces
        self._given = [0] * pieces.size
        self._begun = [0] * pieces.size

    def number(self, dest: int) -> int:
        number = self._given[dest]
        self._given[dest] = (number + 1) % NUMBERS
        return number

    def is_next(self, dest: int, number: int) -> bool:
        return self._begun[dest] == number

    def send(self, words: Array, dest: int, tag: int) -> Wait:
        self._begun[dest] = (self._begun[dest] + 1) % NUMBERS
        channel, mpi_tag = self._channels.channel(tag)
        return once(channel.Isend(words, dest, mpi_tag).Test)

    def receive(self, words: Array, source: int, tag: int) -> tuple[Wait, Callable[[], Status]]:
        status = MPI.Status()
        arrived = once(self._channels.receive(words, MPI.ANY_SOURCE if source == ANY else source, tag, status))
        return arrived, lambda: Status(status.source, status.tag % TAGS, status.count)

    def send_rest(self, words: Words, dest: int, number: int) -> Wait:
        return once(self._pieces.Isend(words, dest, number).Test)

    def receive_rest(self, words: Words, source: int, number: int) -> Wait:
        return once(self._pieces.Irecv(words, source, number).Test)


def complete(request: MPI.Request, status: MPI.Status) -> None:
    """Wait for a short message on an own core: tests of MPICH 5.0 saw it sooner than its wait did."""
    for _ in range(POLLS):
        if request.Test(status):
            return
    request.Wait(status)


def received(request: MPI.Request, status: MPI.Status) -> bool:
    """Test a receive. One that fails is cancelled, because it could take a later message.

    Raises MPI.Exception.
    """
    try:
        return request.Test(status)
    except MPI.Exception:
        if request != MPI.REQUEST_NULL:  # from any rank: one has failed, and others may still send
            request.Cancel()
            request.Wait(status)
            if not status.Is_cancelled():
                return True  # a message came first; the next receive reports the failure
        raise


def once(test: Callable[[], bool]) -> Wait:
    """Return a wait that does not test a completed request again: that would reset its status."""
    completed = False

    def wait() -> bool:
        nonlocal completed
        completed = completed or test()
        return completed

    return wait
