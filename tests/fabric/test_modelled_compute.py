"""Work takes the time it is said to, however long it takes and sleeps last; a straggler's is so much longer."""

import itertools
import math

import pytest

from hpcdl.fabric import faults
from hpcdl.fabric.comm import INPUT
from hpcdl.fabric.faults import Clock, Delays, ModelledCompute, Slowed, Straggler
from hpcdl.fabric.virtual.clocks import in_process


class Kernel:
    """A clock, and sleeps that last longer than asked."""

    def __init__(self, beyond=0.0):
        self.now = 100.0
        self.beyond = beyond
        self.asked = []

    @property
    def clock(self):
        return Clock(lambda: self.now, self.sleep)

    def sleep(self, seconds):
        self.asked.append(seconds)
        self.now += seconds + self.beyond

    def work(self, seconds):
        self.now += seconds
        return seconds


def test_oversleeping_is_measured():
    for beyond in (0.0, 60e-6, 4e-3):
        kernel = Kernel(beyond)
        assert faults.oversleep(kernel.clock) == pytest.approx(beyond, abs=1e-9)
        assert set(kernel.asked) == {faults.TRIAL}


def test_a_sleep_ends_at_its_deadline():
    kernel = Kernel(60e-6)
    faults.sleep_until(100.5, 60e-6, kernel.clock)
    assert kernel.now == pytest.approx(100.5)
    # what is left is shorter than any sleep, or over
    for deadline in (kernel.now + 50e-6, kernel.now - 1):
        faults.sleep_until(deadline, 60e-6, kernel.clock)
    assert len(kernel.asked) == 1


def test_an_accurate_sleep_is_as_long_as_asked():
    """Also one that is shorter than the kernel's least."""
    kernel = Kernel(60e-6)

    def clock():
        kernel.now += 1e-7  # a reading takes time
        return kernel.now

    accurate = faults.accurate_sleep(Clock(clock, kernel.sleep)).sleep
    for seconds in (0.02, 1.0, 61e-6, 30e-6, 0.0):
        begin = kernel.now
        accurate(seconds)
        assert kernel.now - begin == pytest.approx(seconds, abs=1e-6)


@pytest.mark.parametrize(("takes", "lasts"), [(0.0, 2.0), (0.5, 2.0), (3.0, 3.0)])
def test_work_lasts_as_said_or_as_long_as_it_takes(takes, lasts):
    kernel = Kernel(60e-6)

    async def program(comm):
        times = {"forward a": 2.0, "update": 0.0}
        comm = ModelledCompute(comm, times.__getitem__, 60e-6, kernel.clock, {"shard update": 0.5})
        begin = kernel.now
        assert await comm.compute("forward a", lambda: kernel.work(takes)) == takes
        middle = kernel.now
        await comm.compute("update", lambda: kernel.work(0.25))
        await comm.apply("shard update", lambda: kernel.work(takes), 4)
        return middle - begin, kernel.now - middle

    assert in_process(1).run(program)[0] == pytest.approx((lasts, 0.25 + lasts))


def modelled(comm, clock):
    return ModelledCompute(comm, {"update": 3.0}.__getitem__, 0.0, clock)


def slowed(comm, clock):
    return Slowed(comm, Delays(Straggler(rank=comm.rank, factor=3), comm.rank, 0), clock)


@pytest.mark.parametrize("slow", [modelled, slowed])
def test_work_of_a_part_lasts_as_said(slow):
    """Parts that programs share are slowed for this case only."""
    kernel = Kernel()

    async def program(comm):
        longer = slow(comm, kernel.clock)
        everybody = [await each.subcommunicator(lambda _rank: 0, "all") for each in (longer, comm)]
        for part in (*everybody, await longer.split(0), await longer.survivors()):
            assert await part.compute("update", lambda: kernel.work(1.0)) == 1.0

    in_process(1).run(program)
    assert kernel.asked == [2.0] * 3


def test_a_straggler_alone_is_slow_and_numbers_its_parts_as_the_others_do():
    kernel, straggler = Kernel(), Straggler(rank=1, factor=3)

    async def program(comm):
        if straggler.slows(comm.rank):
            comm = Slowed(comm, Delays(straggler, comm.rank, 0), kernel.clock)
        part = await comm.split(0, -comm.rank)
        for seconds in (0.5, 2.0):
            assert await part.compute("work", lambda seconds=seconds: kernel.work(seconds)) == seconds
        return comm.rank, comm.size, part.rank

    assert in_process(3).run(program) == [(0, 3, 2), (1, 3, 1), (2, 3, 0)]
    assert kernel.asked == [1.0, 4.0]


def test_pauses_come_before_batches_with_their_probability_and_follow_seed_and_draw():
    straggler = Straggler(rank=0, probability=0.05, seconds=0.2)
    delays = Delays(straggler, 0, 7)
    lost = [delays.before(INPUT) for _ in range(20_000)]
    assert set(lost) == {0.0, 0.2}
    deviation = math.sqrt(0.05 * 0.95 / len(lost))
    assert lost.count(0.2) / len(lost) == pytest.approx(0.05, abs=4 * deviation)
    assert not any(delays.before("forward conv1") for _ in range(1000))
    fresh = [Delays(straggler, 0, *numbers) for numbers in ((7,), (7, 0), (7, 1), (7, 11), (8,))]
    first, same, *others = [[one.before(INPUT) for _ in range(500)] for one in fresh]
    assert first == same == lost[:500]
    assert all(one != other for one, other in itertools.combinations([first, *others], 2))
