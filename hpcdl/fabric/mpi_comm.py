"""What a program sees of MPI: a communicator whose operations ask the interpreter to wait."""

from __future__ import annotations

from functools import partial
from time import perf_counter_ns, sleep
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import numpy as np
from mpi4py import MPI

from hpcdl.fabric.apart import ends
from hpcdl.fabric.beside import WORTHWHILE_NS, Job
from hpcdl.fabric.comm import ANY, INPUT, LONG, PAUSE, TAGS, Array, Status, check_address, check_exchange
from hpcdl.fabric.mpi_any_tag import AnyTag
from hpcdl.fabric.mpi_clock import compared
from hpcdl.fabric.mpi_failure import received
from hpcdl.fabric.mpi_native import Natives
from hpcdl.fabric.mpi_wire import MpiWire, once
from hpcdl.fabric.nccl import Nccl
from hpcdl.fabric.operation import operation
from hpcdl.fabric.pipeline import both
from hpcdl.fabric.task import DEPTHS, Task
from hpcdl.fabric.transport import choose
from hpcdl.fabric.window import disseminate

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Hashable, Sequence
    from contextlib import AbstractContextManager

    import numpy.typing as npt

    from hpcdl.fabric.comm import Comm, Memory
    from hpcdl.fabric.mpi import Mpi
    from hpcdl.fabric.pipeline import Wait
    from hpcdl.fabric.transport import Transport

T = TypeVar("T")

_TAG_LIMIT: Final = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB) or 32767  # what MPI promises at least

_SPACES: Final = 1 << ((_TAG_LIMIT + 1) // TAGS).bit_length() - 2
"""A power of two, so that what differs in a tag space's lower digits differs in MPI's tag; half are left."""

_READY: Final = _SPACES * TAGS
"""Added to a message's tag on the second communicator: the word that its receiver is ready."""

_NOTHING: Final = np.empty(0, np.uint8)


class MpiComm:
    """A :class:`hpcdl.fabric.comm.Comm` over an MPI communicator.

    The main program's messages travel on one communicator under their own tags; started programs' on a second
    one, under tags that also carry the tag space. A third one carries what follows the first piece of an array
    that is not numpy's (see :mod:`hpcdl.fabric.transport`), and the word that a rank is ready.
    """

    def __init__(self, mpi: Mpi, communicator: MPI.Intracomm, depth: int) -> None:
        if depth >= DEPTHS:
            raise ValueError(f"communicators split more than {DEPTHS} deep")
        self.rank = communicator.rank
        self.size = communicator.size
        self.kept: dict[Hashable, Task[Comm]] = {}
        self._mpi = mpi
        self._main = communicator
        self._started_programs = communicator.Dup()
        self._second = communicator.Dup()
        host = mpi.memory.host
        self._elsewhere = [theirs != host for theirs in communicator.allgather(host)]
        self._wire = MpiWire(self._post, self._receive, self._second)
        self._natives = Natives(mpi.scratch, communicator, self._started_programs, self._second)
        self._nccl: Nccl | None = None
        self._depth = depth
        self._any_tag = AnyTag(self._started_programs)
        self._status = MPI.Status()

    @property
    def library(self) -> MPI.Intracomm:
        """The communicator itself: for start-up, for gathering traces, and to measure the library past us."""
        return self._main

    def clock(self) -> tuple[int, int]:
        """What to add to this rank's clock to get rank 0's, and how far off that may be, in ns. Collective."""
        return compared(self._main)

    def rest(self) -> None:
        """Wait for all ranks asleep, so that ranks with nothing to do leave their cores to others."""
        arrived = self._main.Ibarrier()
        pause = 0.0001
        while not arrived.Test():
            sleep(pause)
            pause = min(2 * pause, 0.02)

    @operation
    def send(self, buffer: Array, dest: int, tag: int = 0) -> Generator[Wait, None, None]:
        """See :class:`hpcdl.fabric.comm.Comm`."""
        check_address(dest, tag, self.size)  # the library would take -1 for nobody, or for anybody
        mpi = self._mpi
        begin = perf_counter_ns()
        if not isinstance(buffer, np.ndarray):
            yield from self._transport().send(self._wire, buffer, dest, tag)
        elif mpi.may_block:
            self._main.Send(buffer, dest, tag)
        else:
            channel, wire = self._channel(tag)
            request = channel.Isend(buffer, dest, wire)
            if not request.Test():
                yield request.Test
        mpi.messages += 1
        mpi.bytes += buffer.nbytes
        if mpi.events is not None:
            self._record("send", begin, dest, buffer.nbytes)

    @operation
    def recv(self, buffer: Array, source: int = ANY, tag: int = ANY) -> Generator[Wait, None, Status]:
        """See :class:`hpcdl.fabric.comm.Comm`."""
        check_address(source, tag, self.size, ANY)
        mpi = self._mpi
        begin = perf_counter_ns()
        if not isinstance(buffer, np.ndarray):
            answer = yield from self._transport().receive(self._wire, buffer, source, tag)
            if mpi.events is not None:
                self._record("recv", begin, answer.source, answer.count * buffer.itemsize)
            return answer
        came_from = MPI.ANY_SOURCE if source == ANY else source
        if mpi.may_block:
            status = self._status
            self._main.Recv(buffer, came_from, MPI.ANY_TAG if tag == ANY else tag, status)
        else:
            status = MPI.Status()
            wait = self._receive(buffer, came_from, tag, status)
            if not wait():
                yield wait
        answer = Status(status.source, status.tag % TAGS, status.count // buffer.itemsize)
        if mpi.events is not None:
            self._record("recv", begin, answer.source, status.count)
        return answer

    @operation
    def exchange(
        self, outgoing: Array, dest: int, incoming: Array, source: int, tag: int = 0
    ) -> Generator[Wait, None, Status]:
        """See :class:`hpcdl.fabric.comm.Comm`."""
        check_exchange(dest, source, tag, self.size)
        mpi = self._mpi
        begin = perf_counter_ns()
        if dest == source and self._elsewhere[dest]:
            yield from self._meet_partner(dest, tag, outgoing.nbytes, incoming.nbytes)
        if not isinstance(outgoing, np.ndarray):
            transport = self._transport()
            _, answer = yield from both(
                transport.send(self._wire, outgoing, dest, tag),
                transport.receive(self._wire, incoming, source, tag),
            )
            if mpi.events is not None:
                self._record("recv", begin, answer.source, answer.count * incoming.itemsize)
        elif mpi.may_block:
            status = self._status
            if mpi.events is None:
                self._main.Sendrecv(outgoing, dest, tag, incoming, source, tag, status)
            else:
                receiving = self._main.Irecv(incoming, source, tag)
                sending = self._main.Isend(outgoing, dest, tag)
                receiving.Wait(status)
                self._record("recv", begin, status.source, status.count)
                sending.Wait()
            answer = Status(status.source, tag, status.count // incoming.itemsize)
        else:
            status = MPI.Status()
            came = self._receive(incoming, source, tag, status)
            channel, wire = self._channel(tag)
            went = channel.Isend(outgoing, dest, wire)
            if not came():
                yield came
            if mpi.events is not None:
                self._record("recv", begin, status.source, status.count)
            if not went.Test():
                yield went.Test
            answer = Status(status.source, tag, status.count // incoming.itemsize)
        mpi.messages += 1
        mpi.bytes += outgoing.nbytes
        if mpi.events is not None:
            self._record("send", begin, dest, outgoing.nbytes)
        return answer

    async def add(self, into: Array, addend: Array) -> None:
        """See :class:`hpcdl.fabric.comm.Comm`."""
        begin = perf_counter_ns()
        into += addend
        if self._mpi.events is not None:
            self._record("add", begin, -1, into.nbytes)

    @operation
    def compute(self, label: str, work: Callable[[], T]) -> Generator[Wait, None, T]:
        """See :class:`hpcdl.fabric.comm.Comm`."""
        mpi = self._mpi
        number = mpi.running.number
        lasted = mpi.lasted.get(label, WORTHWHILE_NS)
        pays = label == PAUSE or (mpi.transport is None and lasted >= WORTHWHILE_NS)
        beside = pays and not mpi.alone
        if beside:
            job = mpi.worker.give(work)
            yield lambda: job.done
        else:
            job = Job(work)
            job.run()
        mpi.lasted[label] = job.end - job.begin
        mpi.compute_ns += job.end - job.begin
        if label == INPUT:
            mpi.input_ns += job.end - job.begin
        if mpi.events is not None:
            mpi.events.append((number, label, job.begin, job.end, -1, 0))
        if not beside and not mpi.alone:
            mpi.progress()
        return job.result()

    def start(self, work: Coroutine[Any, Any, T], *, shared_tags: bool = False) -> Task[T]:
        """See :class:`hpcdl.fabric.comm.Comm`."""
        mpi = self._mpi
        return mpi.launch(mpi.running.starts(work, self, self._depth, shared_tags=shared_tags))

    @operation
    def split(self, color: int, key: int = 0) -> Generator[Wait, None, MpiComm]:
        """See :class:`hpcdl.fabric.comm.Comm`."""
        # MPI_Comm_split blocks: enter it when all ranks are there, and progress started programs until then
        everybody = self._main.Ibarrier()
        if not everybody.Test():
            yield everybody.Test
        part = cast("MPI.Intracomm", self._main.Split(color, key))
        return MpiComm(self._mpi, part, self._depth + 1)

    async def survivors(self) -> MpiComm:
        """See :class:`hpcdl.fabric.comm.Comm`; :mod:`hpcdl.fabric.mpi_failure` is for jobs that outlive a rank."""
        return self

    def shrink(self) -> MpiComm:
        """Return the ranks that are still there; each of them must call, and it blocks."""
        return MpiComm(self._mpi, cast("MPI.Intracomm", self._main.Shrink()), self._depth)

    @operation
    def native(self, collective: str, buffer: Array, counts: Sequence[int] = ()) -> Generator[Wait, None, None]:
        """See :class:`hpcdl.fabric.comm.Comm`.

        A started program's collective is the library's non-blocking one. Programs that run beside each other
        must come to it in the order in which they were started, as those do for which it is the first step.
        """
        begin = perf_counter_ns()
        # blocking and non-blocking collectives do not match, so the choice hangs on the program, not on alone
        blocking = self._mpi.running.space == 0
        operand, result = ends(buffer)
        if isinstance(result, np.ndarray):
            yield from self._natives.run(collective, operand, result, counts, blocking=blocking)
        elif collective == "nccl":
            if self._nccl is None:
                self._nccl = Nccl(self.rank, self.size, self._main.allgather, self._main.bcast)
            done = self._nccl.allreduce(operand, result)
            if not done():
                yield done
        else:
            # on a copy: libraries that move device memory do not all reduce it
            source: Any = result if operand is None else operand
            host = source.get()
            yield from self._natives.run(collective, None, host, counts, blocking=blocking)
            result.set(host)
        if self._mpi.events is not None:
            self._record(f"native {collective}", begin, -1, buffer.nbytes)

    def _transport(self) -> Transport:
        if self._mpi.transport is None:
            self._mpi.transport = choose()
        return self._mpi.transport

    def scratch(self, size: int, like: Array) -> AbstractContextManager[Array]:
        """See :class:`hpcdl.fabric.comm.Comm`."""
        return self._mpi.scratch.borrow(size, like)

    @property
    def memory(self) -> Memory:
        """See :class:`hpcdl.fabric.comm.Comm`."""
        return self._mpi.memory

    def lend(self, like: Array) -> AbstractContextManager[Array]:
        """See :class:`hpcdl.fabric.comm.Comm`."""
        return self._mpi.lent.borrow(like.size, like)

    async def meet(self, words: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """See :class:`hpcdl.fabric.comm.Comm`."""
        if self._mpi.running.space:
            return await disseminate(self, words)
        # the library's own, counted as the dissemination that it stands for
        self._mpi.messages += (self.size - 1).bit_length()
        self._mpi.bytes += (self.size - 1) * words.nbytes
        table = np.empty((self.size, len(words)), np.int64)
        if len(words):
            self._main.Allgather(words, table)
        else:
            self._main.Barrier()
        return table

    async def get(self, into: Array, theirs: Array, peer: int) -> None:
        """See :class:`hpcdl.fabric.comm.Comm`."""
        begin = perf_counter_ns()
        into[:] = theirs
        if self._mpi.events is not None:
            self._record("get", begin, peer, into.nbytes)

    @property
    def channel(self) -> MPI.Intracomm:
        """The communicator on which the running program's messages travel."""
        return self._channel(0)[0]

    def _channel(self, tag: int) -> tuple[MPI.Intracomm, int]:
        """The communicator and the tag under which the running program's messages travel."""
        space = self._mpi.running.space
        if space == 0:
            return self._main, tag
        return self._started_programs, space % _SPACES * TAGS + tag

    def _post(self, buffer: Array, dest: int, tag: int) -> Wait:
        """Post a send; the answer tells whether it is done."""
        channel, wire = self._channel(tag)
        return once(channel.Isend(buffer, dest, wire).Test)

    def _meet_partner(self, partner: int, tag: int, outgoing: int, incoming: int) -> Generator[Wait, None, None]:
        """Before an exchange of so many bytes: a long message waits until ``partner`` is ready to receive it.

        A rank that comes to a round early would send while its partner still receives the last round's message,
        from another: both would share its link, and the message that all wait for would come late.
        """
        _, wire = self._channel(tag)
        ready = told = MPI.REQUEST_NULL
        if incoming >= LONG:
            ready = self._second.Isend(_NOTHING, partner, _READY + wire)
        if outgoing >= LONG:
            told = self._second.Irecv(_NOTHING, partner, _READY + wire)
        for request in (told, ready):
            if self._mpi.may_block:
                request.Wait()
            elif not request.Test():
                yield request.Test

    def _receive(self, buffer: Array, source: int, tag: int, status: MPI.Status) -> Wait:
        """Post a receive; the answer tells whether it is done, ``status`` what came."""
        space = self._mpi.running.space
        if space == 0:
            request = self._main.Irecv(buffer, source, MPI.ANY_TAG if tag == ANY else tag)
            return partial(received, request, status)
        if tag == ANY or self._any_tag.strays:
            return self._any_tag.receive(buffer, source, space % _SPACES, tag, status)
        channel, wire = self._channel(tag)
        request = channel.Irecv(buffer, source, wire)
        return partial(received, request, status)

    def _record(self, label: str, begin: int, peer: int, size: int) -> None:
        mpi = self._mpi
        mpi.events.append(  # type: ignore[union-attr]
            (mpi.running.number, label, begin, perf_counter_ns(), peer, size)
        )
