"""Symmetry: the ranks of one host stand for all, and times are those of simulating all ranks."""

from dataclasses import replace
from functools import partial

import pytest
from contract.virtual_time import ring_seconds

from hpcdl.cases.parts import operations
from hpcdl.fabric.network import EVERY_RANK, NETWORKS
from hpcdl.fabric.topologies.torus import Torus
from hpcdl.fabric.virtual.clocks import simulated
from hpcdl.fabric.virtual.shifts import AsymmetryError, Shifts, shifts

NETWORK = NETWORKS["infiniband-hdr"]
SCHEMES = {"ring": {}, "torus": {}, "hierarchical": {"ranks_per_node": 8}}


def operation(scheme, ranks, length):
    """Return an allreduce of the scheme."""
    return operations.operation("allreduce", scheme, SCHEMES.get(scheme, {}), ranks, length, "float32")


def agree(program, network):
    """Compare with all ranks, and return the number of ranks that stood for them."""
    simulation, world = program.simulate(network), simulated(program.ranks, network)
    world.run(program)
    assert simulation.seconds == pytest.approx(world.now, rel=1e-9)
    assert simulation.messages == max(world.messages)
    assert simulation.bytes == pytest.approx(max(world.bytes), rel=0.2)
    if program.length % program.ranks == 0:
        assert simulation.bytes == max(world.bytes)
    return simulation.simulated_ranks


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("ranks_per_host", [1, 2, 8, 16, EVERY_RANK])
@pytest.mark.parametrize("ranks", [64, 96])
def test_representatives_take_the_time_of_all(ranks, ranks_per_host, scheme):
    stand = agree(operation(scheme, ranks, 1000 * ranks), NETWORK.on(ranks_per_host))
    # a row of the torus of 96 ranks has 12: hosts of 8 and of 16 cut it
    whole = (scheme, ranks) == ("torus", 96) and ranks_per_host in {8, 16}
    assert stand == (ranks if whole else 1 if ranks_per_host == EVERY_RANK else ranks_per_host)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("length", [25_557_032, 7])
def test_unequal_parts_of_many_messages_take_the_time_of_the_longest(length, scheme, monkeypatch):
    assert agree(operation(scheme, 64, length), NETWORK) == 64
    monkeypatch.setattr(operations, "MAX_UNEQUAL", 0)
    assert agree(operation(scheme, 64, length), NETWORK) == 1


@pytest.mark.parametrize("scheme", ["ring", "circulant"])
@pytest.mark.parametrize("grids", [(), ((4, 4, 4),)])
def test_distances_of_representatives_are_those_of_all(scheme, grids):
    link = replace(NETWORK.link, overhead=3e-7, distance_alpha=2e-7, distance_beta=1e-11)
    assert agree(operation(scheme, 64, 6400), replace(NETWORK, link=link, grids=grids)) == 1


def test_a_ring_of_16384_ranks():
    p, n = 1 << 14, 4 << 20
    simulation = operation("ring", p, n // 4).simulate(NETWORK)
    stated = ring_seconds(NETWORK, p, n)
    assert simulation[:4] == (pytest.approx(stated, rel=1e-9), 2 * (p - 1), 2 * n * (p - 1) // p, 1)


def test_unequal_hosts_and_schemes_without_symmetry_are_simulated_on_all_ranks():
    for network in [replace(NETWORK, topology=Torus(sides=[8])), replace(NETWORK, hosts=(0, 1, 0)), NETWORK.on(3)]:
        assert agree(operation("ring", 8, 800), network) == 8
    for ranks, scheme in [(12, "hierarchical"), (16, "tree"), (16, "native")]:
        assert operation(scheme, ranks, 1600).simulate(NETWORK).simulated_ranks == ranks


@pytest.mark.parametrize(("columns", "finer"), [(3, (4, 3)), (4, (3, 4)), (5, ())])
def test_rows_that_a_shift_cuts_are_the_sides_of_a_finer_grid(columns, finer):
    names = [f"row {row}" for row in range(12)]
    rows = {rank: names[rank // columns] for rank in range(12)}
    with pytest.raises(AsymmetryError) as raised:
        Shifts((12,), (2,)).check(rows)
    assert tuple(raised.value.sides) == finer
    if finer:
        Shifts(finer, (1, 1)).check(rows)
        Shifts(finer, (1, 1)).check({rank: names[rank % columns] for rank in rows})


def test_one_rank_stands_only_for_ranks_that_do_the_same():
    vector = operation("ring", 8, 8)._vector

    async def around(comm, special):
        await comm.exchange(vector, (comm.rank + 1) % 8, vector, (comm.rank - 1) % 8)
        if comm.rank == special:
            await comm.add(vector, vector)

    async def by_number(comm):
        others = sorted([(comm.rank + 1) % 8, (comm.rank - 1) % 8])
        sends = [comm.start(comm.send(vector, other), shared_tags=True) for other in others]
        for other in others:
            await comm.recv(vector, other, 0)
        for sent in sends:
            await sent

    def stands(program, network=NETWORK):
        def run(grid):
            world = simulated(8, network, shifts=grid)
            return world, world.run(program)

        return operations.by_symmetry(8, network, run) is not None

    assert stands(partial(around, special=None))
    assert stands(partial(around, special=None), NETWORK.on(2))
    for rank in (0, 4, 7):
        assert not stands(partial(around, special=rank))
    assert not stands(by_number)


def test_a_shift_moves_the_receiver_to_the_first_host():
    """Rows of six ranks on hosts of two: rank 15, in place 3 of row 2, sends to rank 9, in place 3 of row 1."""
    grid = shifts((4, 6), NETWORK.on(2))
    assert grid.representatives == range(2)
    assert grid.shifted(15, 9) == (7, 1)
    middle, last = sorted(grid.others(), key=lambda other: other.representatives.start)
    assert (middle.representatives, last.representatives) == (range(14, 16), range(22, 24))
    assert middle.shifted(15, 9) == (21, 15)
    assert shifts((4, 6), NETWORK.on(12)).shifted(15, 21) == (3, 9)
    assert shifts((4, 6), NETWORK.on(8)) is None


def test_operations_on_all_ranks_have_no_representatives():
    async def any_source(comm):
        await comm.recv(operation("ring", 4, 4)._vector)

    async def barrier(comm):
        await comm.native("barrier", operation("ring", 4, 4)._vector)

    for program in (any_source, barrier):
        with pytest.raises(AsymmetryError):
            simulated(4, NETWORK, shifts=Shifts((4,), (1,))).run(program)
