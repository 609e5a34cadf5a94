"""The MPI interpreter: progress during compute, sleeping barrier, clocks, counters, failures, stragglers."""

import os
from pathlib import Path
from time import perf_counter, process_time, sleep
from typing import ClassVar

import numpy as np
import pytest
from contract.cases import case_of
from contract.operands import operands
from mpi4py import MPI

from hpcdl.aggregation.ring import ring
from hpcdl.fabric.comm import INPUT
from hpcdl.fabric.faults import Clock, Delays, Slowed, Straggler
from hpcdl.fabric.mpi import comm as mpi_comm
from hpcdl.fabric.mpi import messages
from hpcdl.fabric.mpi.comm import Mpi, MpiComm
from hpcdl.fabric.vectors import SHORT_BYTES
from hpcdl.launch.counters import Health
from hpcdl.run.case_loop import _run_case
from hpcdl.run.job import Job

pytestmark = pytest.mark.mpi

needs_two = pytest.mark.mpi(min_size=2)


def test_a_started_ring_makes_progress_within_one_compute(mpi):
    """All 2 (p - 1) steps of the ring happen during one long layer, not after it."""
    rows, expected = operands(mpi.comm.size, 10_007)
    mine = rows[mpi.comm.rank]

    async def program(comm):
        await comm.compute("layer", lambda: sleep(0.001))  # so that its time is known to be long
        task = comm.start(ring(comm, mine))
        await comm.compute("layer", lambda: _until(lambda: task.done))
        return task.done

    assert mpi.run(program(mpi.comm))
    assert (mine == expected).all()


def test_exchanges_that_come_again_have_their_own_results(mpi, monkeypatch):
    """Short ones are prepared, more of them come than are kept, and the last ones are shorter than their buffers."""
    monkeypatch.setattr(messages, "_MAX_EXCHANGES", 6)
    buffers = [(np.zeros(size), np.zeros(size)) for size in (1, 2, 3, 5, 0, 1, SHORT_BYTES // 8 + 1)]

    async def program(comm):
        right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        for turn in range(4):
            for tag, (outgoing, incoming) in enumerate(buffers):
                outgoing[:], incoming[:] = comm.rank + turn, -1
                status = await comm.exchange(outgoing, right, incoming, left, tag)
                assert (incoming == left + turn).all()
                assert status == (left, tag, outgoing.size)
            for _ in range(3):
                buffers[2][0][:], buffers[3][1][:] = comm.rank + turn, -1
                status = await comm.exchange(buffers[2][0], right, buffers[3][1], left)
                assert buffers[3][1].tolist() == [left + turn] * 3 + [-1] * 2
                assert status == (left, 0, 3)

    mpi.run(program(mpi.comm))
    assert not mpi.at_end


def _until(happened):
    """Return work that waits on a second thread for the first one, with a time limit."""
    for _ in range(20_000):
        if happened():
            return
        sleep(0.001)


@needs_two
def test_ranks_sleep_in_the_barrier_until_all_have_arrived(mpi):
    comm = mpi.comm
    comm.library.Barrier()
    begin, used = perf_counter(), process_time()
    if comm.rank == 0:
        sleep(0.5)
    comm.sleeping_barrier()
    waited, used = perf_counter() - begin, process_time() - used
    assert waited > 0.4
    assert used < waited / 2


def test_ranks_under_one_kernel_have_one_clock_and_others_offsets_within_the_stated_error(mpi, monkeypatch):
    """Offsets are measured by messages, as between hosts; the shared clock of one host gives the error."""
    if len(set(mpi.comm.library.allgather(MPI.Get_processor_name()))) == 1:
        assert mpi.comm.clock() == (0, 0)
    monkeypatch.setattr(mpi_comm, "_clock_name", lambda: str(mpi.comm.rank))
    offset, error = mpi_comm.compared(mpi.comm.library)
    assert abs(offset) <= error
    assert (error == 0) == (mpi.comm.rank == 0)


def test_the_counters_count_computing(mpi):
    async def program(comm):
        await comm.compute("work", lambda: sleep(0.01))
        await comm.compute("input", lambda: sleep(0.01))

    before = mpi.counters()
    mpi.run(program(mpi.comm))
    after = mpi.counters()
    computed, input_ = after.compute_ns - before.compute_ns, after.input_ns - before.input_ns
    assert 20_000_000 <= 10_000_000 + input_ <= computed <= after.time_ns - before.time_ns


def test_one_rank_of_each_node_reads_its_links(mpi, monkeypatch):
    """Two ranks a node; the growth of a node is the number of the rank that reads."""
    rank, size = mpi.comm.rank, mpi.comm.size
    here = {"slurm_node": f"n{rank // 2}", "hostname": f"h{rank // 2 % 2}"}
    monkeypatch.setattr("hpcdl.run.job.describe_rank", lambda: here)
    readings = iter([{"m/1": {"port_xmit_wait": 5}}, {"m/1": {"port_xmit_wait": 5 + rank}}])
    monkeypatch.setattr("hpcdl.run.job.link_counters", lambda: next(readings))
    counters = Job(mpi).link_counters()
    if rank == 0:  # hosts of one name are told apart by their nodes
        names = [f"{'n' if size > 4 + 2 * (node % 2) else 'h'}{node}" for node in range(-(-size // 2))]
        grown = [{"port_xmit_wait": 2 * node} if node else {} for node in range(len(names))]
        assert counters == {name: {"m/1": growth} for name, growth in zip(names, grown, strict=True)}


def test_one_rank_of_each_node_reads_its_health(mpi, monkeypatch):
    """Two ranks a node; all nodes of this test are one machine, whose energy counts once."""
    rank, size = mpi.comm.rank, mpi.comm.size
    monkeypatch.setattr("hpcdl.run.job.describe_rank", lambda: {"slurm_node": "", "hostname": f"h{rank // 2}"})

    class Sensors:
        def read(self):
            return f"{rank}"

        def health(self, begin):
            return Health([f"read by {begin}"], [], {"GPUs": 5.0})

    monkeypatch.setattr("hpcdl.run.job.Sensors", Sensors)
    case = case_of("collective", ranks=size, message_bytes=64, repetitions=1)
    result, _, _ = _run_case(case, Job(mpi), mpi.comm, Path("0.h5"), None)  # written if the case fails
    if rank == 0:
        assert (result["energy_joules"], result["energy_of"]) == (5.0, "GPUs")
        nodes = range(min(-(-size // 2), 3))
        more = "" if size <= 6 else "; 1 more"
        assert result["throttled"] == "; ".join(f"h{node}: read by {2 * node}" for node in nodes) + more


def test_every_operation_is_an_event(mpi):
    """The trace has program, label, times in order, peer and bytes of each operation.

    Peers are named by their rank in the case, also in a sub-communicator, where ranks have other numbers.
    """

    async def program(comm):
        left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
        await comm.compute("forward", lambda: None)
        await comm.exchange(np.zeros(10), right, np.zeros(10), left)
        await comm.start(comm.exchange(np.zeros(3), right, np.zeros(3), left))
        await comm.start(comm.add(np.zeros(2), np.zeros(2)))
        await comm.native("barrier", np.zeros(0))
        if comm.rank == 0 < right:
            await comm.send(np.zeros(4), right)
        elif comm.rank == 1:
            status = await comm.recv(np.zeros(6))
            assert status.count == 4
        part = await (await comm.split(comm.rank % 2)).split(0)
        if part.rank == 0 < part.size - 1:
            await part.send(np.zeros(1), part.size - 1)
        elif part.rank == part.size - 1 > 0:
            await part.recv(np.zeros(1))

    mpi.events = events = []
    try:
        mpi.run(program(mpi.comm))
    finally:
        mpi.events = None
    left, right = (mpi.comm.rank - 1) % mpi.comm.size, (mpi.comm.rank + 1) % mpi.comm.size
    expected = [
        (0, "forward", -1, 0),
        (0, "recv", left, 80),
        (0, "send", right, 80),
        (1, "recv", left, 24),
        (1, "send", right, 24),
        (2, "add", -1, 16),
        (0, "native barrier", -1, 0),
    ]
    if mpi.comm.size > 1 and mpi.comm.rank < 2:
        expected.append((0, "recv", 0, 32) if mpi.comm.rank else (0, "send", 1, 32))
    part = range(mpi.comm.rank % 2, mpi.comm.size, 2)
    ends = {part[0]: (0, "send", part[-1], 8), part[-1]: (0, "recv", part[0], 8)} if len(part) > 1 else {}
    expected += [ends[mpi.comm.rank]] if mpi.comm.rank in ends else []
    assert [(task, label, peer, size) for task, label, _, _, peer, size in events] == expected
    begins, ends = ([event[at] for event in events] for at in (2, 3))
    assert begins == sorted(begins)
    assert ends == sorted(ends)
    assert all(begin <= end for begin, end in zip(begins, ends, strict=True))


class Mistake(Exception):
    pass


def test_a_failed_main_program_ends_the_run_while_others_are_in_flight(communicator):
    """Its started programs may wait forever, so the error must end the job."""
    mpi = Mpi(communicator)
    got = np.zeros(1)

    async def fail(comm):
        comm.start(comm.recv(got, (comm.rank - 1) % comm.size, 5))
        raise Mistake

    async def deliver(comm):
        await comm.start(comm.send(np.ones(1), (comm.rank + 1) % comm.size, 5))

    with pytest.raises(Mistake):
        mpi.run(fail(mpi.comm))
    assert not mpi.alone
    mpi.comm.library.Barrier()
    mpi.run(deliver(mpi.comm))
    assert mpi.alone
    assert got[0] == 1


@pytest.mark.parametrize("wait", ["recv", "compute", "native", "meet", "another"])
@pytest.mark.parametrize("at_once", [True, False])
def test_a_failed_started_program_ends_the_run_while_the_main_program_waits_forever(wait, at_once, communicator):
    """Rank 0 fails and waits for messages that no rank sends."""
    mpi = Mpi(communicator)

    async def fail(comm):
        if not at_once:
            await comm.compute("update", lambda: sleep(0.01))
        raise Mistake

    async def program(comm):
        comm.start(fail(comm))
        if wait == "compute":
            while True:
                await comm.compute("layer", lambda: sleep(0.001))
        if wait == "another":
            await comm.start(comm.recv(np.zeros(1), (comm.rank + 1) % comm.size, 7))
        if wait in {"native", "meet"}:
            await comm.compute("layer", lambda: sleep(0.1))
        if wait == "native":
            await comm.native("barrier", np.zeros(0))
        if wait == "meet":
            await comm.allgather_words(np.zeros(1, np.int64))
        await comm.recv(np.zeros(1), (comm.rank + 1) % comm.size, 6)

    if mpi.comm.rank == 0:
        with pytest.raises(Mistake):
            mpi.run(program(mpi.comm))
    mpi.comm.library.Barrier()


def test_ranks_have_own_cores_while_the_others_sleep(communicator):
    """As many ranks as cores are awake on one machine; then all are awake again."""
    cores = len(os.sched_getaffinity(0))
    if communicator.size <= cores:
        pytest.skip("needs more ranks than cores")
    mpi = Mpi(communicator)
    assert mpi.backoff.oversubscribed
    assert not mpi.may_block
    part = mpi.run(mpi.comm.split(mpi.comm.rank < cores))
    if mpi.comm.rank < cores:
        mpi.awake(part)
        assert not mpi.backoff.oversubscribed
        assert mpi.may_block
    mpi.comm.sleeping_barrier()
    mpi.awake(mpi.comm)
    assert mpi.backoff.oversubscribed
    assert not mpi.may_block


@needs_two
@pytest.mark.parametrize("known", [True, False])
def test_messages_make_progress_during_concurrent_long_work(known, mpi):
    """Long work starts while a started program computes; neither may wait for the other.

    That holds for work that was never done before, of which nobody knows how long it takes.
    """
    during = []
    mpi.lasted.clear()

    async def program(comm):
        left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
        exchanges = 0

        async def met(tag):
            await comm.exchange(np.zeros(3), right, np.zeros(3), left, tag)

        async def side():
            await met(1)
            await comm.compute("side", lambda: sleep(0.005))

        async def talk():
            nonlocal exchanges
            for _ in range(400):
                await met(2)
                exchanges += 1

        def long():
            before = exchanges
            sleep(0.3)
            during.append(exchanges - before)

        for label in ("side", "long") if known else ():
            await comm.compute(label, lambda: sleep(0.001))
        tasks = [comm.start(side()), comm.start(talk())]
        await met(3)
        await comm.compute("long", long)
        for task in tasks:
            await task

    mpi.run(program(mpi.comm))
    assert during[0] >= 10


class Watched(MPI.Intracomm):
    """A communicator that lists itself and its duplicates."""

    made: ClassVar[list] = []

    def Dup(self, info=None):
        self.made.append(super().Dup(info) if info else super().Dup())
        return self.made[-1]


@pytest.mark.parametrize("inside", [False, True])
def test_exchanges_of_varying_length_between_hosts_leave_no_message(inside, communicator):
    """A short message into a long buffer, then long messages both ways; each rank acts as its own host."""
    other = communicator.rank ^ 1
    mpi = Mpi(communicator)
    mpi.memory.host = communicator.rank
    mpi.comm = MpiComm(mpi, Watched(communicator).Dup(), 0)

    async def talk(comm):
        for mine, theirs in ((3, 3), (200_000, 3), (3, 200_000), (200_000, 200_000), (0, 200_000)):
            out, room = (mine, theirs) if comm.rank % 2 else (theirs, mine)
            incoming = np.zeros(300_000, np.uint8)
            status = await comm.exchange(np.full(out, comm.rank + 1, np.uint8), other, incoming, other)
            assert status.count == room
            assert incoming.sum() == room * (other + 1)

    async def program(comm):
        if other < comm.size:
            await (comm.start(talk(comm)) if inside else talk(comm))

    mpi.run(program(mpi.comm))
    mpi.comm.library.Barrier()
    pending = [communicator.iprobe() for communicator in Watched.made]
    assert len(pending) >= 3
    assert not any(pending)


ECHOES = 10
NO_MORE = -1


@needs_two
def test_a_rank_answers_while_it_pauses(mpi):
    """Each echo follows the previous one, so that at most one could have waited for the pause."""
    answered, during = [], []

    def until_answered(seconds):
        if not seconds:  # the delay of the rank's factor, which is 1
            return
        before = len(answered)
        for _ in range(10_000):
            if len(answered) >= before + ECHOES:
                break
            sleep(0.001)
        during.append(len(answered) - before)

    async def echo(comm):
        word = np.zeros(1)
        while word[0] != NO_MORE:
            await comm.recv(word, 1)
            answered.append(word[0])
            if during:
                word[0] = NO_MORE
            await comm.send(word, 1)

    async def program(comm):
        if comm.rank == 0:
            delays = Delays(Straggler(rank=0, probability=1, seconds=1), 0, 1)
            slow = Slowed(comm, delays, Clock(sleep=until_answered))
            server = slow.start(echo(comm), shared_tags=True)
            await slow.compute(INPUT, lambda: None)
            await server
        elif comm.rank == 1:
            word = np.zeros(1)
            while word[0] != NO_MORE:
                word[0] += 1
                await comm.send(word, 0)
                await comm.recv(word, 0)

    mpi.run(program(mpi.comm))
    if mpi.comm.rank == 0:
        assert answered == list(range(1, len(answered) + 1))
        assert during[0] >= ECHOES
