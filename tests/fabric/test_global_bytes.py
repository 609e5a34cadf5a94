"""Bytes over links between groups: counted by hand, and those that the authors of Bine published of real jobs."""

from functools import partial

import pytest

from hpcdl.cases.parts.operations import operation
from hpcdl.fabric.network import Link, Network
from hpcdl.fabric.topologies.dragonfly import Dragonfly
from hpcdl.fabric.topologies.fat_tree import FatTree
from hpcdl.fabric.topologies.torus import Torus

N = 8000
network = partial(Network, "by hand", Link(1e-6, 1e-9), "none")


def over(name, ranks, topology, hosts=(), collective="allreduce", **settings):
    where = network(topology=topology, hosts=hosts)
    return operation(collective, name, settings, ranks, N // 4, "float32").simulate(where).global_bytes


def test_a_ring_sends_its_vector_over_each_border():
    """Two of eight ranks' links leave a group of four; on a torus every message crosses one link."""
    once = 2 * N * 7 // 8
    assert over("ring", 8, FatTree(hosts=[4, 2])) == 2 * once
    assert over("ring", 8, Dragonfly(groups=2, routers=2, hosts=2)) == 2 * once
    assert over("ring", 8, Torus(sides=[8])) == 8 * once
    assert over("ring", 8, None) is None


def test_bine_sends_more_than_recursive_doubling_between_aligned_groups_of_powers_of_two():
    """Distances of powers of two leave such a group only in the last steps."""
    tree = FatTree(hosts=[16, 4])
    bine, butterfly = over("bine", 64, tree, optimal="latency"), over("butterfly", 64, tree)
    assert bine / butterfly == 1.125


@pytest.mark.parametrize(
    ("groups", "published"),
    [((13, 12, 7), 11.0), ((6, 6, 4), 7.14), ((2, 2, 3, 1, 1, 2, 2, 3), 10.0), ((11, 15, 6), 20.40)],
)
def test_fewer_bytes_between_groups_are_those_published_of_jobs_on_lumi(groups, published):
    """Nodes of each group, and per cent by Bine of Rabenseifner's (PICO, tracer/sinfo, cut to two digits)."""
    hosts = tuple(64 * group + host for group, count in enumerate(groups) for host in range(count))
    jobs = sum(groups), FatTree(hosts=[64, len(groups)]), hosts
    bine, other = over("bine", *jobs), over("halving_doubling", *jobs, nearest_first=True)
    assert 100 * (1 - bine / other) == pytest.approx(published, abs=0.02)


def test_a_swing_crosses_fewer_links_of_a_torus_than_distances_of_powers_of_two():
    torus, sides = Torus(sides=[8, 8]), [8, 8]
    swing = over("swing", 64, torus, sides=sides)
    assert swing < over("halving_doubling", 64, torus, nearest_first=True)
    assert swing < over("bine", 64, torus)
