"""What is measured of the links is what they cost."""

from time import sleep

import pytest

from hpcdl.cases.measuring.autotune import fitted_bucket_bytes, measure_link
from hpcdl.fabric.network import NETWORKS
from hpcdl.fabric.virtual.simulated import simulated
from hpcdl.training.parts.bucketing import bucket_bytes


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("name", ["ethernet-1g", "gemini"])
def test_alpha_and_beta_are_the_networks(name, ranks):
    network = NETWORKS[name]
    world = simulated(ranks, network, compute=lambda _rank, _label: 0.0)

    def clock():
        return round(world.running.time * 1e12) / 1e3

    async def program(comm):
        return await measure_link(comm, clock), await fitted_bucket_bytes(comm, sleep, clock)

    for (alpha, beta), size in world.run(program):
        # the short message's 8 bytes are in alpha; clocks count whole nanoseconds
        assert alpha == pytest.approx(network.link.alpha + 8 * network.link.beta, abs=2e-9)
        assert beta == pytest.approx(network.link.beta, rel=1e-3)
        assert size == pytest.approx(bucket_bytes(alpha, beta, ranks), rel=1e-9)


class Busy:
    """Ranks that come to their messages 3 ms late while something of theirs runs."""

    def __init__(self, comm):
        self._comm = comm

    def __getattr__(self, name):
        return getattr(self._comm, name)

    async def exchange(self, *arguments):
        await self._comm.exchange(*arguments)
        await self._comm.compute("late", lambda: None)


def test_alpha_beside_work_has_what_messages_take_longer_there():
    link = NETWORKS["gemini"].link
    late = set()
    world = simulated(2, NETWORKS["gemini"], compute=lambda rank, label: 3e-3 * (label == "late" and rank in late))
    worked = []

    async def program(comm):
        def work(seconds):
            worked.append(seconds)
            late.add(comm.rank)

        return await measure_link(Busy(comm), lambda: round(world.running.time * 1e12) / 1e3, work)

    for alpha, beta in world.run(program):
        assert alpha == pytest.approx(3e-3 + link.alpha, rel=1e-3)
        assert beta == pytest.approx(link.beta, rel=1e-3)
    assert worked == pytest.approx([2 * (link.alpha + (1 << 18) * link.beta)] * len(worked), rel=1e-3)
    assert len(worked) == 2 * 8
