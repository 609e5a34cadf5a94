"""The interpreter for MPI, with arrays of numpy or cupy: its communicators yield to the scheduler where they wait.

A rank with one program and its own core calls the library's blocking operations. With started programs in
flight every operation is a non-blocking request and the programs take turns; so it is where ranks outnumber cores,
because a blocked library spins on the core that its peer needs. Then local work is on a second thread, unless it
is short.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from time import perf_counter_ns, sleep
from typing import Final, TypeVar, cast

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from hpcdl.fabric.comm import ANY, INPUT, TAGS, Array, Memory, Status, check_address, check_exchange
from hpcdl.fabric.device.staged_copy import Wait, both, until
from hpcdl.fabric.device.transport import Transport, choose
from hpcdl.fabric.mpi.backoff import Backoff, here, sleep_until
from hpcdl.fabric.mpi.messages import PROBES_ANY_SOURCE, Channels, MpiWire, RepeatedExchanges, complete
from hpcdl.fabric.mpi.natives import Natives
from hpcdl.fabric.mpi.scheduler import WORTHWHILE_NS, Job, Scheduler
from hpcdl.fabric.task import DEPTHS, Program, Task, operation
from hpcdl.fabric.vectors import disseminate, operand_and_result

T = TypeVar("T")


class MpiComm:
    """A :class:`hpcdl.fabric.comm.Comm` over an MPI communicator.

    It uses three communicators: those of :class:`hpcdl.fabric.mpi.messages.Channels`, and one for what follows the
    first piece of an array that is not numpy's (:mod:`hpcdl.fabric.device.transport`).
    """

    def __init__(
        self, scheduler: Scheduler, communicator: MPI.Intracomm, depth: int, members: Sequence[int] = ()
    ) -> None:
        if depth >= DEPTHS:
            raise ValueError(f"communicators split more than {DEPTHS} deep")
        self.rank = communicator.rank
        self.size = communicator.size
        self._members = members or range(self.size)
        self.scratch = scheduler.scratch.borrow
        self._scheduler = scheduler
        self._main = communicator
        self._channels = Channels(scheduler, communicator)
        pieces = communicator.Dup()
        self._wire = MpiWire(self._channels, pieces)
        self._natives = Natives(scheduler.scratch, communicator, self._channels.started, pieces, scheduler.at_end)
        self._depth = depth
        self._subcommunicators: dict[Hashable, Task[MpiComm]] = {}
        self._repeated = RepeatedExchanges(communicator, scheduler.at_end)
        self._status = MPI.Status()

    @property
    def library(self) -> MPI.Intracomm:
        """The MPI communicator: for start-up, for gathering traces, and to measure the library itself."""
        return self._main

    def clock(self) -> tuple[int, int]:
        return compared(self._main)

    def sleeping_barrier(self) -> None:
        """Wait for all ranks in sleeps, so that idle ranks leave their cores to others."""
        sleep_until(self._main.Ibarrier().Test)

    @operation
    def send(self, buffer: Array, dest: int, tag: int = 0) -> Generator[Wait, None, None]:
        check_address(dest, tag, self.size)  # the library has ranks below 0: MPI_PROC_NULL, MPI_ANY_SOURCE
        scheduler = self._scheduler
        begin = perf_counter_ns()
        if not isinstance(buffer, np.ndarray):
            yield from self._transport().send(self._wire, buffer, dest, tag)
        elif scheduler.may_block:
            self._main.Send(buffer, dest, tag)
        else:
            channel, mpi_tag = self._channels.channel(tag)
            request = channel.Isend(buffer, dest, mpi_tag)
            if not request.Test():
                yield request.Test
        scheduler.messages += 1
        scheduler.bytes += buffer.nbytes
        if scheduler.events is not None:
            self._record("send", begin, dest, buffer.nbytes)

    @operation
    def recv(self, buffer: Array, source: int = ANY, tag: int = ANY) -> Generator[Wait, None, Status]:
        check_address(source, tag, self.size, ANY)
        scheduler = self._scheduler
        begin = perf_counter_ns()
        if not isinstance(buffer, np.ndarray):
            answer = yield from self._transport().receive(self._wire, buffer, source, tag)
            if scheduler.events is not None:
                self._record("recv", begin, answer.source, answer.count * buffer.itemsize)
            return answer
        came_from = MPI.ANY_SOURCE if source == ANY else source
        if scheduler.may_block and not (source == ANY and PROBES_ANY_SOURCE):
            status = self._status
            self._main.Recv(buffer, came_from, MPI.ANY_TAG if tag == ANY else tag, status)
        else:
            # A status of its own: other programs may receive before this one goes on.
            status = MPI.Status()
            wait = self._channels.receive(buffer, came_from, tag, status)
            if not wait():
                yield wait
        answer = Status(status.source, status.tag % TAGS, status.count // buffer.itemsize)
        if scheduler.events is not None:
            self._record("recv", begin, answer.source, status.count)
        return answer

    @operation
    def exchange(
        self, outgoing: Array, dest: int, incoming: Array, source: int, tag: int = 0
    ) -> Generator[Wait, None, Status]:
        scheduler = self._scheduler
        begin = perf_counter_ns()
        key = (id(outgoing), dest, id(incoming), source, tag)
        ready = self._repeated.ready.get(key) if scheduler.may_block else None
        if ready is None:
            check_exchange(dest, source, tag, self.size)
        if ready is not None:
            arrival, departure, answer, size = ready
            status = self._status
            try:
                arrival.Start()
                departure.Start()
                departure.Wait()
                complete(arrival, status)
            except MPI.Exception:
                self._repeated.free()
                raise
            if scheduler.events is not None:
                self._record("recv", begin, source, status.count)
            if status.count != size:
                answer = Status(source, tag, status.count // incoming.itemsize)
        elif not isinstance(outgoing, np.ndarray):
            transport = self._transport()
            _, answer = yield from both(
                transport.send(self._wire, outgoing, dest, tag),
                transport.receive(self._wire, incoming, source, tag),
            )
            if scheduler.events is not None:
                self._record("recv", begin, answer.source, answer.count * incoming.itemsize)
        elif scheduler.may_block:
            status = self._status
            if scheduler.events is None:
                self._main.Sendrecv(outgoing, dest, tag, incoming, source, tag, status)
            else:
                # Two requests tell when each direction ended, for the trace; Sendrecv tells only when both have.
                receiving = self._main.Irecv(incoming, source, tag)
                sending = self._main.Isend(outgoing, dest, tag)
                receiving.Wait(status)
                self._record("recv", begin, source, status.count)
                sending.Wait()
            self._repeated.prepare(key, outgoing, incoming)
            answer = Status(source, tag, status.count // incoming.itemsize)
        else:
            status = MPI.Status()
            arrived = self._channels.receive(incoming, source, tag, status)
            channel, mpi_tag = self._channels.channel(tag)
            sending = channel.Isend(outgoing, dest, mpi_tag)
            if not arrived():
                yield arrived
            if scheduler.events is not None:
                self._record("recv", begin, status.source, status.count)
            if not sending.Test():
                yield sending.Test
            answer = Status(status.source, tag, status.count // incoming.itemsize)
        scheduler.messages += 1
        scheduler.bytes += outgoing.nbytes
        if scheduler.events is not None:
            self._record("send", begin, dest, outgoing.nbytes)
        return answer

    async def apply(self, label: str, work: Callable[[], T], touched_bytes: int) -> T:
        begin = perf_counter_ns()
        result = work()
        if self._scheduler.events is not None:
            self._record(label, begin, -1, touched_bytes)
        return result

    async def add(self, into: Array, addend: Array) -> Array:
        begin = perf_counter_ns()
        into += addend
        if self._scheduler.events is not None:
            self._record("add", begin, -1, into.nbytes)
        return into

    @operation
    def compute(self, label: str, work: Callable[[], T]) -> Generator[Wait, None, T]:
        scheduler = self._scheduler
        number = scheduler.running.number
        lasted = scheduler.lasted.get(label, WORTHWHILE_NS)
        on_thread = scheduler.transport is None and lasted >= WORTHWHILE_NS and not scheduler.alone
        if on_thread:
            job = scheduler.worker.give(work)
            yield lambda: job.done
        else:
            job = Job(work)
            job.run()
        scheduler.lasted[label] = job.end - job.begin
        scheduler.compute_ns += job.end - job.begin
        if label == INPUT:
            scheduler.input_ns += job.end - job.begin
        if scheduler.events is not None:
            scheduler.events.append((number, label, job.begin, job.end, -1, 0))
        if not on_thread and not scheduler.alone:
            scheduler.progress()
            scheduler.raise_failures()
        return job.result()

    def start(self, work: Program[T], *, shared_tags: bool = False) -> Task[T]:
        scheduler = self._scheduler
        return scheduler.launch(scheduler.running.starts(work, self, self._depth, shared_tags=shared_tags))

    @operation
    def split(self, color: int, key: int = 0) -> Generator[Wait, None, MpiComm]:
        # MPI_Comm_split blocks: enter it when all ranks have called, and progress started programs until then
        yield from until(self._main.Ibarrier().Test)
        part = cast("MPI.Intracomm", self._main.Split(color, key))
        places = part.group.Translate_ranks(None, self._main.group)
        return MpiComm(self._scheduler, part, self._depth + 1, [self._members[place] for place in places])

    async def subcommunicator(self, color: Callable[[int], int], division: Hashable) -> MpiComm:
        if division not in self._subcommunicators:
            self._subcommunicators[division] = self.start(self.split(color(self.rank)), shared_tags=True)
        return await self._subcommunicators[division]

    async def survivors(self) -> MpiComm:
        """See :class:`hpcdl.fabric.comm.Comm`; without fault tolerance no rank may fail."""
        return self

    def shrink(self) -> MpiComm:
        """Return the ranks that have not failed. Blocking and collective among them."""
        return MpiComm(self._scheduler, cast("MPI.Intracomm", self._main.Shrink()), self._depth)

    @operation
    def native(self, collective: str, buffer: Array, counts: Sequence[int] = ()) -> Generator[Wait, None, None]:
        """See :class:`hpcdl.fabric.comm.Comm`.

        A started program's collective is the library's non-blocking one. Concurrent programs must call it in the
        order in which they were started, as do programs whose first operation it is.
        """
        self._scheduler.raise_failures()
        begin = perf_counter_ns()
        # blocking and non-blocking collectives do not match, so all ranks must choose by the program
        blocking = self._scheduler.running.space == 0
        if blocking and isinstance(buffer, np.ndarray) and (call := self._natives.simple.get(collective)):
            call(buffer)
        else:
            operand, result = operand_and_result(buffer)
            yield from self._natives.run(collective, operand, result, counts, blocking=blocking)
        if self._scheduler.events is not None:
            self._record(f"native {collective}", begin, -1, buffer.nbytes)

    def _transport(self) -> Transport:
        if self._scheduler.transport is None:
            self._scheduler.transport = choose()
        return self._scheduler.transport

    @property
    def memory(self) -> Memory:
        return self._scheduler.memory

    def borrow_shared(self, like: Array) -> AbstractContextManager[Array]:
        return self._scheduler.shared_pool.borrow(like.size, like)

    async def allgather_words(self, words: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        self._scheduler.raise_failures()
        if self._scheduler.running.space:
            return await disseminate(self, words)
        # the library's own, counted as the messages of :func:`disseminate`
        self._scheduler.messages += (self.size - 1).bit_length()
        self._scheduler.bytes += (self.size - 1) * words.nbytes
        table = np.empty((self.size, len(words)), np.int64)
        if len(words):
            self._main.Allgather(words, table)
        else:
            self._main.Barrier()
        return table

    async def get(self, into: Array, theirs: Array, peer: int) -> None:
        begin = perf_counter_ns()
        into[:] = theirs
        if self._scheduler.events is not None:
            self._record("get", begin, peer, into.nbytes)

    @property
    def channel(self) -> MPI.Intracomm:
        """The MPI communicator of the running program's messages."""
        return self._channels.channel()[0]

    def _record(self, label: str, begin: int, peer: int, size: int) -> None:
        scheduler = self._scheduler
        member = -1 if peer < 0 else self._members[peer]
        event = (scheduler.running.number, label, begin, perf_counter_ns(), member, size)
        scheduler.events.append(event)  # type: ignore[union-attr]


_NAMESPACE: Final = Path("/proc/self/ns/time")
_ROUND_TRIPS: Final = 10
_TURN_SECONDS: Final = 1e-3


def compared(communicator: MPI.Intracomm, read: Callable[[], int] = perf_counter_ns) -> tuple[int, int]:
    """Return the offset from this rank's clock to rank 0's and its greatest error, in ns. Collective.

    ``read`` returns the time of the clock. Ranks under one kernel in one time namespace have one clock, as
    emulated hosts do. The offset is from the shortest of several round trips, with rank 0's answer in its middle,
    so that the error is at most half of it (Cristian 1989). A rank sleeps until its turn, because other ranks may
    need its core.
    """
    clocks = communicator.allgather(_clock_name())
    offset = error = 0
    for other in range(1, communicator.size):
        if clocks[other] == clocks[0]:
            continue
        if communicator.rank == 0:
            communicator.send(None, other)
            for _ in range(_ROUND_TRIPS):
                communicator.recv(source=other)
                communicator.send(read(), other)
        elif communicator.rank == other:
            while not communicator.iprobe(source=0):
                sleep(_TURN_SECONDS)
            communicator.recv(source=0)
            trips = []
            for _ in range(_ROUND_TRIPS):
                begin = read()
                communicator.send(None, 0)
                theirs = communicator.recv(source=0)
                end = read()
                trips.append((end - begin, theirs - (begin + end) // 2))
            # the shortest trip had the least delay by other load, on both ways
            trip, offset = min(trips)
            error = -(-trip // 2)
    return offset, error


def _clock_name() -> str:
    """Return a name of the clock of this process: its machine and its time namespace."""
    namespace = _NAMESPACE.readlink() if _NAMESPACE.exists() else ""
    return f"{here().machine} {namespace}"


def library_version() -> dict[str, str]:
    """Name and version of the MPI library, for the record."""
    name, version = MPI.get_vendor()
    return {
        "library": name,
        "version": ".".join(map(str, version)),
        "text": MPI.Get_library_version().strip("\0 \n").partition("\n")[0],
    }


class Mpi(Scheduler):
    """This process's rank in an MPI job; ``comm`` holds the ranks of ``communicator``."""

    def __init__(self, communicator: MPI.Intracomm = MPI.COMM_WORLD) -> None:
        super().__init__(_ranks_per_core(communicator))
        self.comm = MpiComm(self, communicator.Dup(), 0)

    def awake(self, comm: MpiComm) -> None:
        """From now on only the ranks of ``comm`` use cores, the others sleep. Each of those must call."""
        self.backoff = Backoff(_ranks_per_core(comm.library))
        self.may_block = self.alone and not self.backoff.oversubscribed


def _ranks_per_core(communicator: MPI.Intracomm) -> float:
    mine = here()
    return mine.ranks_per_core(communicator.allgather(mine))
