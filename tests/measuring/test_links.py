"""What is measured of the links is what they cost."""

import pytest

from hpcdl.fabric.network import NETWORKS
from hpcdl.fabric.simulated import simulated
from hpcdl.measuring.links import fitted_bucket_bytes, measure_link, one_host
from hpcdl.training.bucketing import bucket_bytes


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("name", ["ethernet-1g", "gemini"])
def test_alpha_and_beta_are_the_networks(name, ranks):
    network = NETWORKS[name]
    world = simulated(ranks, network)

    def clock():
        return round(world.running.time * 1e12) / 1e3

    async def program(comm):
        return await measure_link(comm, clock), await fitted_bucket_bytes(comm, clock)

    for (alpha, beta), size in world.run(program):
        # the short message's 8 bytes are in alpha; clocks count whole nanoseconds
        assert alpha == pytest.approx(network.link.alpha + 8 * network.link.beta, abs=2e-9)
        assert beta == pytest.approx(network.link.beta, rel=1e-3)
        assert size == pytest.approx(bucket_bytes(alpha, beta, ranks), rel=1e-9)


def test_ranks_of_one_process_share_a_host():
    assert simulated(3, NETWORKS["gemini"]).run(one_host) == [True] * 3


def test_one_rank_has_no_link():
    assert simulated(1, NETWORKS["gemini"]).run(fitted_bucket_bytes) == [None]
