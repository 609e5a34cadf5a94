"""The real thing: mpi4py, any array that numpy or cupy gives.

While a rank has one program it calls the library's blocking operations, which is as fast as the library is.
While started programs are in flight every operation is a non-blocking request and the programs take turns. Work
given to :meth:`MpiComm.compute` then runs on a second thread, where numpy, BLAS and compiled kernels let go of the
interpreter, and messages move during it; short work is followed by a look at what has arrived.
"""

from __future__ import annotations

import os
import types
from collections import deque
from time import perf_counter_ns, sleep
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeAlias, TypeVar, cast

import numpy as np
from mpi4py import MPI

from hpcdl.fabric.beside import WORTHWHILE_NS, Worker
from hpcdl.fabric.comm import (
    ANY,
    DEPTHS,
    INPUT,
    TAGS,
    Array,
    Event,
    Gauge,
    Scratch,
    Status,
    Task,
    check_address,
    check_exchange,
    partition,
)
from hpcdl.fabric.mpi_wire import MpiWire, once
from hpcdl.fabric.nccl import Nccl
from hpcdl.fabric.pipeline import Wait, both
from hpcdl.fabric.transport import choose

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Hashable
    from contextlib import AbstractContextManager

    from hpcdl.fabric.comm import Comm
    from hpcdl.fabric.transport import Transport

P = ParamSpec("P")
T = TypeVar("T")

_Wait: TypeAlias = Wait
"""What a program that waits yields: tells, when asked, whether it may go on."""

_TAG_LIMIT: Final = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB) or 32767  # what MPI promises at least

_SPACES: Final = 1 << ((_TAG_LIMIT + 1) // TAGS).bit_length() - 1
"""A power of two, so that what differs in a tag space's lower digits differs in MPI's tag."""

_ROUND_TRIPS: Final = 10

_FRUITLESS: Final = 200
"""Polls in vain before the processor is offered to others: more ranks than cores must not starve a peer."""


def library_version() -> dict[str, str]:
    """Name and version of the MPI library, for the record."""
    name, version = MPI.get_vendor()
    return {
        "library": name,
        "version": ".".join(map(str, version)),
        "text": MPI.Get_library_version().strip("\0 \n").partition("\n")[0],
    }


class Mpi:
    """This process's place in an MPI job.

    ``messages`` and ``bytes`` count what this rank has sent, native collectives apart; ``compute_ns`` is the
    time in :meth:`MpiComm.compute`, ``input_ns`` the part of it in work labelled "input". While ``events`` is a
    list, every operation is appended to it.
    """

    def __init__(self, communicator: MPI.Intracomm = MPI.COMM_WORLD) -> None:
        self.messages = 0
        self.bytes = 0
        self.compute_ns = 0
        self.input_ns = 0
        self.events: list[Event] | None = None
        self.scratch = Scratch()
        self.worker = Worker()
        self.lasted: dict[str, int] = {}
        """How long the work of each label took the last time, in ns."""
        self.transport: Transport | None = None
        """For arrays that are not numpy's; chosen when the first one is met."""
        self.running: Task[Any] = None  # type: ignore[assignment]
        self.alone = True
        """Whether no started program is in flight, so that the library may block."""
        self.comm = MpiComm(self, communicator.Dup(), 0)
        self._in_flight = 0
        self._launched = 0
        self._main: Task[Any] | None = None
        self._ready: deque[Task[Any]] = deque()
        self._waiting: list[tuple[Task[Any], _Wait]] = []
        self._failed: list[Task[Any]] = []

    def abort(self, code: int) -> None:
        """End the whole job."""
        MPI.COMM_WORLD.Abort(code)

    def gauge(self) -> Gauge:
        """The clock and the counts."""
        return Gauge(perf_counter_ns(), self.messages, self.bytes, self.compute_ns, self.input_ns)

    def run(self, program: Coroutine[Any, Any, T]) -> T:
        """Run this rank's program to its end, and all that it started.

        Raises what the program raised, at once, for what is in flight may wait for it for ever; or what one
        raised that it started and did not join.
        """
        main = self._main = Task(program)
        self._launched = 0
        self._resume(main)
        fruitless = 0
        while not main.done or (self._in_flight and main.error is None):
            if self.progress():
                fruitless = 0
            else:
                fruitless += 1
                if fruitless > _FRUITLESS:
                    os.sched_yield()
        failed, self._failed = self._failed, []
        for task in failed:
            if task.error is not None and not task.joined:
                raise task.error
        return main.result  # type: ignore[return-value]

    def launch(self, task: Task[T]) -> Task[T]:
        """Start a program beside the running one; it runs to its first wait at once."""
        starter = self.running
        self._launched += 1
        task.number = self._launched
        self._in_flight += 1
        self.alone = False
        self._resume(task)
        self.running = starter
        return task

    def progress(self) -> bool:
        """Let every program go on that no longer has to wait; tells whether there was one."""
        running = self.running
        moved = bool(self._ready)
        while self._ready:
            self._resume(self._ready.popleft())
        waiting, self._waiting = self._waiting, []
        for task, may_go_on in waiting:
            if may_go_on():
                moved = True
                self._resume(task)
            else:
                self._waiting.append((task, may_go_on))
        self.running = running
        return moved

    def _resume(self, task: Task[Any]) -> None:
        """Let ``task`` run to its next wait."""
        self.running = task
        try:
            asked = task.coroutine.send(None)
        except StopIteration as stop:
            task.result = stop.value
        except Exception as error:  # noqa: BLE001 - handed to whoever joins, or raised by run()
            task.error = error
            self._failed.append(task)
        else:
            if isinstance(asked, Task):
                asked.waiters.append(task)
            else:
                self._waiting.append((task, asked))
            return
        task.done = True
        self._ready.extend(task.waiters)
        if task is not self._main:
            self._in_flight -= 1
            self.alone = self._in_flight == 0


def _operation(generator: Callable[P, Generator[_Wait, None, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """An ``async def`` whose body may yield to the interpreter: half the cost of awaiting something that does."""
    return types.coroutine(generator)  # type: ignore[return-value]


class MpiComm:
    """A :class:`hpcdl.fabric.comm.Comm` over an MPI communicator.

    The main program's messages travel on one communicator under their own tags; started programs' on a second
    one, under tags that also carry the tag space. A third one carries what follows the first piece of an array
    that is not numpy's; see :mod:`hpcdl.fabric.transport`.
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
        self._wire = MpiWire(self._post, self._receive, self._second)
        self._scattered = 0
        self._gathered = 0
        """Started programs' reduce-scatters, and allgathers after them, that have begun."""
        self._nccl: Nccl | None = None
        self._depth = depth
        self._strays: list[tuple[int, int, int, MPI.Message]] = []
        """Messages (space, source, tag, message) that a receive of any tag drew out for another program."""
        self._status = MPI.Status()

    @property
    def library(self) -> MPI.Intracomm:
        """The communicator itself: for start-up, for gathering traces, and to measure the library past us."""
        return self._main

    def clock_offset_ns(self) -> int:
        """What to add to this rank's clock to get rank 0's (Cristian 1989): half of the shortest round trip.

        Ranks on one host share a clock; between hosts the error is less than half a round trip. Collective.
        """
        offset = 0
        for other in range(1, self.size):
            if self.rank == 0:
                for _ in range(_ROUND_TRIPS):
                    self._main.recv(source=other)
                    self._main.send(perf_counter_ns(), other)
            elif self.rank == other:
                trips = []
                for _ in range(_ROUND_TRIPS):
                    begin = perf_counter_ns()
                    self._main.send(None, 0)
                    theirs = self._main.recv(source=0)
                    end = perf_counter_ns()
                    trips.append((end - begin, theirs - (begin + end) // 2))
                offset = min(trips)[1]
        return offset

    def rest(self) -> None:
        """Wait for all ranks asleep, so that ranks with nothing to do leave their cores to others."""
        arrived = self._main.Ibarrier()
        pause = 0.0001
        while not arrived.Test():
            sleep(pause)
            pause = min(2 * pause, 0.02)

    @_operation
    def send(self, buffer: Array, dest: int, tag: int = 0) -> Generator[_Wait, None, None]:
        """See :class:`hpcdl.fabric.comm.Comm`."""
        check_address(dest, tag, self.size)  # the library would take -1 for nobody, or for anybody
        mpi = self._mpi
        begin = perf_counter_ns()
        if not isinstance(buffer, np.ndarray):
            yield from self._transport().send(self._wire, buffer, dest, tag)
        elif mpi.alone:
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

    @_operation
    def recv(self, buffer: Array, source: int = ANY, tag: int = ANY) -> Generator[_Wait, None, Status]:
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
        if mpi.alone:
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

    @_operation
    def exchange(
        self, outgoing: Array, dest: int, incoming: Array, source: int, tag: int = 0
    ) -> Generator[_Wait, None, Status]:
        """See :class:`hpcdl.fabric.comm.Comm`."""
        check_exchange(dest, source, tag, self.size)
        mpi = self._mpi
        begin = perf_counter_ns()
        if not isinstance(outgoing, np.ndarray):
            transport = self._transport()
            _, answer = yield from both(
                transport.send(self._wire, outgoing, dest, tag),
                transport.receive(self._wire, incoming, source, tag),
            )
            mpi.messages += 1
            mpi.bytes += outgoing.nbytes
            if mpi.events is not None:
                self._record("exchange", begin, dest, outgoing.nbytes)
            return answer
        if mpi.alone:
            status = self._status
            self._main.Sendrecv(outgoing, dest, tag, incoming, source, tag, status)
        else:
            status = MPI.Status()
            received = self._receive(incoming, source, tag, status)
            channel, wire = self._channel(tag)
            sent = channel.Isend(outgoing, dest, wire).Test
            if not received():
                yield received
            if not sent():
                yield sent
        mpi.messages += 1
        mpi.bytes += outgoing.nbytes
        if mpi.events is not None:
            self._record("exchange", begin, dest, outgoing.nbytes)
        return Status(status.source, tag, status.count // incoming.itemsize)

    async def add(self, into: Array, addend: Array) -> None:
        """See :class:`hpcdl.fabric.comm.Comm`."""
        begin = perf_counter_ns()
        into += addend
        if self._mpi.events is not None:
            self._record("add", begin, -1, into.nbytes)

    async def compute(self, label: str, work: Callable[[], T]) -> T:
        """See :class:`hpcdl.fabric.comm.Comm`."""
        mpi = self._mpi
        running = mpi.running
        begin = perf_counter_ns()
        if mpi.alone or mpi.transport is not None or mpi.lasted.get(label, 0) < WORTHWHILE_NS:
            result = work()
        else:
            result = mpi.worker.run(work, mpi.progress)
        end = perf_counter_ns()
        mpi.lasted[label] = end - begin
        mpi.compute_ns += end - begin
        if label == INPUT:
            mpi.input_ns += end - begin
        if mpi.events is not None:
            mpi.events.append((running.number, label, begin, end, -1, 0))
        if not mpi.alone:
            mpi.progress()
        return result

    def start(self, work: Coroutine[Any, Any, T], *, shared_tags: bool = False) -> Task[T]:
        """See :class:`hpcdl.fabric.comm.Comm`."""
        mpi = self._mpi
        return mpi.launch(mpi.running.starts(work, self, self._depth, shared_tags=shared_tags))

    @_operation
    def split(self, color: int, key: int = 0) -> Generator[_Wait, None, MpiComm]:
        """See :class:`hpcdl.fabric.comm.Comm`."""
        # MPI_Comm_split blocks: enter it when all ranks are there, and progress started programs until then
        everybody = self._main.Ibarrier()
        if not everybody.Test():
            yield everybody.Test
        part = cast("MPI.Intracomm", self._main.Split(color, key))
        return MpiComm(self._mpi, part, self._depth + 1)

    @_operation
    def native(self, collective: str, buffer: Array) -> Generator[_Wait, None, None]:
        """See :class:`hpcdl.fabric.comm.Comm`.

        A started program's collective is the library's non-blocking one. Programs that run beside each other
        must come to it in the order in which they were started, as those do for which it is the first step.
        """
        begin = perf_counter_ns()
        if isinstance(buffer, np.ndarray):
            yield from self._library(collective, buffer)
        elif collective == "nccl":
            if self._nccl is None:
                self._nccl = Nccl(self.rank, self.size, self._main.allgather, self._main.bcast)
            done = self._nccl.allreduce(buffer)
            if not done():
                yield done
        else:
            # on a copy: libraries that move device memory do not all reduce it
            host = buffer.get()
            yield from self._library(collective, host)
            buffer.set(host)
        if self._mpi.events is not None:
            self._record(f"native {collective}", begin, -1, buffer.nbytes)

    def _library(self, collective: str, buffer: Array) -> Generator[_Wait, None, None]:
        """The MPI library's collective on host memory."""
        # blocking and non-blocking collectives do not match, so the choice hangs on the program, not on alone
        blocking = self._mpi.running.space == 0
        if collective == "reduce_scatter allgather":
            yield from self._halves(buffer, blocking=blocking)
            return
        if collective == "nonblocking allreduce":
            channel = self._main if blocking else self._started_programs
            blocking = False
            request = channel.Iallreduce(MPI.IN_PLACE, buffer)
        elif collective == "allreduce":
            if blocking:
                self._main.Allreduce(MPI.IN_PLACE, buffer)
            else:
                request = self._started_programs.Iallreduce(MPI.IN_PLACE, buffer)
        elif collective == "barrier":
            if blocking:
                self._main.Barrier()
            else:
                request = self._started_programs.Ibarrier()
        else:
            raise ValueError(f"no native collective {collective!r}")
        if not blocking and not request.Test():
            yield request.Test

    def _halves(self, buffer: Array, *, blocking: bool) -> Generator[_Wait, None, None]:
        """The library's reduce-scatter and allgather.

        Started programs' allgathers begin in the order of their reduce-scatters, and on a communicator without
        others, for these end on each rank as they will.
        """
        counts = [len(part) for part in partition(buffer, self.size)]
        with self.scratch(counts[self.rank], buffer) as mine:
            if blocking:
                self._main.Reduce_scatter(buffer, mine, counts)
                self._main.Allgatherv(mine, [buffer, counts])
                return
            turn = self._scattered
            self._scattered += 1
            request = self._started_programs.Ireduce_scatter(buffer, mine, counts)

            def may_gather() -> bool:
                return bool(request.Test()) and self._gathered == turn

            if not may_gather():
                yield may_gather
            self._gathered += 1
            gathering = self._second.Iallgatherv(mine, [buffer, counts])
            if not gathering.Test():
                yield gathering.Test

    def _transport(self) -> Transport:
        if self._mpi.transport is None:
            self._mpi.transport = choose()
        return self._mpi.transport

    def scratch(self, size: int, like: Array) -> AbstractContextManager[Array]:
        """See :class:`hpcdl.fabric.comm.Comm`."""
        return self._mpi.scratch.borrow(size, like)

    def _channel(self, tag: int) -> tuple[MPI.Intracomm, int]:
        """The communicator and the tag under which the running program's messages travel."""
        space = self._mpi.running.space
        if space == 0:
            return self._main, tag
        return self._started_programs, space % _SPACES * TAGS + tag

    def _post(self, buffer: Array, dest: int, tag: int) -> _Wait:
        """Post a send; the answer tells whether it is done."""
        channel, wire = self._channel(tag)
        return once(channel.Isend(buffer, dest, wire).Test)

    def _receive(self, buffer: Array, source: int, tag: int, status: MPI.Status) -> _Wait:
        """Post a receive; the answer tells whether it is done, ``status`` what came."""
        space = self._mpi.running.space
        if space == 0:
            request = self._main.Irecv(buffer, source, MPI.ANY_TAG if tag == ANY else tag)
            return lambda: request.Test(status)
        if tag == ANY or self._strays:
            return self._draw(buffer, source, space % _SPACES, tag, status)
        channel, wire = self._channel(tag)
        request = channel.Irecv(buffer, source, wire)
        return lambda: request.Test(status)

    def _draw(self, buffer: Array, source: int, space: int, tag: int, status: MPI.Status) -> _Wait:
        """Receive any tag of one space, which MPI cannot express: draw messages out until one is of that space.

        What turns up for other programs waits among the strays, in order.
        """
        request: MPI.Request | None = None

        def done() -> bool:
            nonlocal request
            while request is None:
                for i, (its_space, its_source, its_tag, message) in enumerate(self._strays):
                    if its_space == space and source in (its_source, MPI.ANY_SOURCE) and tag in (its_tag, ANY):
                        del self._strays[i]
                        request = message.Irecv(buffer)
                        break
                else:
                    found = MPI.Status()
                    drawn = self._started_programs.Improbe(source, MPI.ANY_TAG, found)
                    if drawn is None:
                        return False
                    self._strays.append((found.tag // TAGS, found.source, found.tag % TAGS, drawn))
            return request.Test(status)

        return done

    def _record(self, label: str, begin: int, peer: int, size: int) -> None:
        mpi = self._mpi
        mpi.events.append(  # type: ignore[union-attr]
            (mpi.running.number, label, begin, perf_counter_ns(), peer, size)
        )
