"""All-to-alls with counts: every block arrives whole, and messages and bytes are those of the matrix."""

import numpy as np
import pytest
from contract.blocks import EVERY, exchanged, matrices
from contract.generated import RANKS, generated
from hypothesis import strategies as st

from hpcdl.aggregation.parts.traits import ALLTOALLV, offered
from hpcdl.cases.parts.operations import blocks
from hpcdl.fabric.network import NETWORKS
from hpcdl.fabric.vectors import phantom
from hpcdl.fabric.virtual.clocks import in_process, simulated

NETWORK = NETWORKS["ethernet-10g"]


@pytest.mark.parametrize(("name", "settings"), EVERY)
@generated(3, *({"ranks": ranks, "seed": 1} for ranks in (1, 2, 3, 7, 8)), ranks=RANKS, seed=st.integers(0, 1000))
def test_every_block_arrives(name, settings, ranks, seed):
    """Of several at once."""

    async def program(comm):
        tasks = [comm.start(exchanged(comm, name, counts, settings)) for counts in matrices(ranks)]
        return [await task for task in reversed(tasks)]

    assert np.all(in_process(ranks, seed).run(program))


def world_of(name, counts, network=None, **settings):
    """Return the world after an exchange of sizes alone."""
    world = in_process(len(counts)) if network is None else simulated(len(counts), network)

    def program(comm):
        vectors = [phantom(int(part.sum())) for part in (counts[comm.rank], counts[:, comm.rank])]
        return offered(ALLTOALLV, name)(comm, blocks(counts, comm.rank, *vectors), **settings)

    world.run(program)
    return world


@pytest.mark.parametrize("ranks", [1, 2, 5, 8, 13])
def test_messages_and_bytes_are_those_of_the_matrix(ranks):
    """Empty blocks cost no message; of Bruck's algorithm a block is sent once for each digit 1 of its distance."""
    distance = (np.arange(ranks) - np.arange(ranks)[:, None]) % ranks
    digits = sum(distance >> place & 1 for place in range(4))
    for counts in matrices(ranks):
        others = counts * (distance > 0)
        for name in ("direct", "pairwise"):
            world = world_of(name, counts)
            assert world.bytes == (4 * others.sum(axis=1)).tolist()
            assert world.messages == (others > 0).sum(axis=1).tolist()
        world = world_of("bruck", counts)
        assert sum(world.bytes) == 4 * (counts * digits).sum() + 8 * digits.sum()
        assert world.messages == [2 * (ranks - 1).bit_length()] * ranks


@pytest.mark.parametrize("ranks_per_node", [1, 2, 4])
def test_a_hierarchical_one_sends_each_block_across_nodes_once(ranks_per_node):
    node = np.arange(8) // ranks_per_node
    for counts in matrices(8):
        world = world_of("hierarchical", counts, NETWORK.on(ranks_per_node), ranks_per_node=ranks_per_node)
        assert world.clock.bytes_between_hosts == 4 * counts[node[:, None] != node].sum()
    full = world_of("hierarchical", np.ones((8, 8), int), ranks_per_node=ranks_per_node)
    assert full.messages == [2 * (ranks_per_node - 1) + 8 // ranks_per_node - 1] * 8


@pytest.mark.parametrize(("name", "settings"), EVERY)
def test_no_simulated_time_is_below_that_of_the_busiest_rank_s_bytes(name, settings):
    """Unequal counts of equal sums take longer."""
    times, beta = [], NETWORK.link.beta
    for counts in (np.full((6, 6), 60_000), np.tile([210_000, *[30_000] * 5], (6, 1))):
        busiest = 4 * 5 * counts[0, 0]  # received by rank 0
        times.append(world_of(name, counts, NETWORK, **settings).now)
        assert times[-1] >= busiest * beta
        if name in {"native", "direct", "pairwise"}:
            assert times[-1] == pytest.approx(5 * NETWORK.link.alpha + busiest * beta, rel=1e-9)
    assert times[0] < times[1]


def test_a_node_without_ranks_is_refused():
    with pytest.raises(ValueError, match=r"^ranks_per_node = 0: a node has at least 1 rank$"):
        world_of("hierarchical", np.ones((2, 2), int), ranks_per_node=0)
