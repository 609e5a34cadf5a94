"""Work takes the time it is said to, however long it takes and however long sleeps last."""

import pytest

from hpcdl.fabric.modelled_compute import TRIAL, Clock, ModelledCompute, accurate_sleep, oversleep, sleep_until
from hpcdl.fabric.virtual.inprocess import in_process


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
        assert oversleep(kernel.clock) == pytest.approx(beyond, abs=1e-9)
        assert set(kernel.asked) == {TRIAL}


def test_a_sleep_ends_at_its_deadline():
    kernel = Kernel(60e-6)
    sleep_until(100.5, 60e-6, kernel.clock)
    assert kernel.now == pytest.approx(100.5)
    # what is left is shorter than any sleep, or over
    for deadline in (kernel.now + 50e-6, kernel.now - 1):
        sleep_until(deadline, 60e-6, kernel.clock)
    assert len(kernel.asked) == 1


@pytest.mark.parametrize("seconds", [0.02, 1.0, 61e-6, 30e-6, 0.0])
def test_an_accurate_sleep_is_as_long_as_asked(seconds):
    """Also one that is shorter than the kernel's least."""
    kernel = Kernel(60e-6)

    def clock():
        kernel.now += 1e-7  # a reading takes time
        return kernel.now

    accurate = accurate_sleep(Clock(clock, kernel.sleep)).sleep
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


def test_work_of_a_part_lasts_as_said():
    kernel = Kernel()

    async def program(comm):
        comm = ModelledCompute(comm, {"update": 2.0}.__getitem__, 0.0, kernel.clock)
        for part in (
            await comm.split(0),
            await comm.subcommunicator(lambda _rank: 0, "all"),
            await comm.survivors(),
        ):
            await part.compute("update", lambda: kernel.work(0.5))

    in_process(1).run(program)
    assert kernel.asked == [1.5] * 3
