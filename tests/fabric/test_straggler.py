"""A slow rank loses what its straggler says, whoever measures."""

import math
from functools import partial

import pytest

from hpcdl.fabric.comm import INPUT
from hpcdl.fabric.faults import Delays, Slowed, Straggler
from hpcdl.fabric.modelled_compute import Clock
from hpcdl.fabric.virtual.inprocess import in_process


class Watch:
    """A clock that goes on when somebody works or sleeps."""

    def __init__(self):
        self.now = 0.0
        self.slept = []

    def work(self, seconds):
        self.now += seconds
        return seconds

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds


def run(straggler, program, watch):
    """Everybody's answers; only the straggler's work is watched."""

    async def on(comm):
        if straggler.slows(comm.rank):
            comm = Slowed(comm, Delays(straggler, comm.rank, 0), Clock(lambda: watch.now, watch.sleep))
        return await program(comm)

    return in_process(3).run(on)


def test_work_takes_so_many_times_as_long_and_gives_the_same():
    watch = Watch()

    async def program(comm):
        return [await comm.compute("work", partial(watch.work, seconds)) for seconds in (0.5, 2.0)]

    assert run(Straggler(rank=2, factor=5), program, watch) == [[0.5, 2.0]] * 3
    assert watch.slept == [2.0, 8.0]


def test_messages_and_parts_are_the_communicators_own():
    """The work of a program that talks on a part is slowed, too."""
    watch = Watch()

    async def program(comm):
        part = await comm.split(0, -comm.rank)
        await part.compute("work", lambda: watch.work(1.0))
        return comm.rank, comm.size, part.rank

    assert run(Straggler(rank=1, factor=3), program, watch) == [(0, 3, 2), (1, 3, 1), (2, 3, 0)]
    assert watch.slept == [2.0]


def test_parts_that_programs_share_are_slowed_for_this_case_only():
    watch = Watch()

    async def program(comm):
        slow = Slowed(
            comm,
            Delays(Straggler(rank=comm.rank, factor=3), comm.rank, 0),
            Clock(lambda: watch.now, watch.sleep),
        )
        for part in [await each.subcommunicator(lambda _rank: 0, "all") for each in (slow, comm)]:
            await part.compute("work", lambda: watch.work(1.0))

    in_process(1).run(program)
    assert watch.slept == [2.0]


def test_pauses_come_before_batches_with_their_probability():
    delays = Delays(Straggler(rank=0, probability=0.05, seconds=0.2), 0, 7)
    lost = [delays.before(INPUT) for _ in range(20_000)]
    assert set(lost) == {0.0, 0.2}
    deviation = math.sqrt(0.05 * 0.95 / len(lost))
    assert lost.count(0.2) / len(lost) == pytest.approx(0.05, abs=4 * deviation)
    assert not any(delays.before("forward conv1") for _ in range(1000))
