"""Clusters with a topology: routes and contention by hand, and rules that every fair sharing has."""

import random
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from contract import virtual_time

from hpcdl import registry
from hpcdl.aggregation.direct import direct
from hpcdl.aggregation.halving_doubling import halving_doubling
from hpcdl.aggregation.parameter_server import parameter_server
from hpcdl.aggregation.ring import ring
from hpcdl.fabric.network import Link, Network, Site
from hpcdl.fabric.topologies.dragonfly import Dragonfly
from hpcdl.fabric.topologies.fat_tree import FatTree
from hpcdl.fabric.topologies.torus import Torus
from hpcdl.fabric.vectors import phantom
from hpcdl.fabric.virtual.flows import fair_shares
from hpcdl.prediction.network_file import load_network

ALPHA, BETA = 1e-5, 1e-9
N = 4 << 20
"""Bytes of a vector."""
PLAIN = Network("lan", Link(ALPHA, BETA), "round numbers", gamma=0)


def on(topology, **site):
    """Return the network with a topology."""
    return replace(PLAIN, topology=topology, site=Site(**site))


def seconds(scheme, ranks, network):
    """Return the virtual time of a sum of N bytes on each rank."""
    return virtual_time.seconds(ranks, lambda comm: scheme(comm, phantom(N // 4, "float32")), network)


def exactly(latencies, bytes_on_a_port):
    """Return the time of so many latencies and bytes."""
    return pytest.approx(latencies * ALPHA + bytes_on_a_port * BETA, rel=1e-9)


def test_ring_crosses_switches_once_and_always_if_hosts_are_taken_in_turn():
    """In their order hosts send one message at a time over a switch's link; taken in turn from switches, all."""
    for topology in [FatTree(hosts=[4, 2], oversubscription=[2]), FatTree(hosts=[2, 4])]:
        assert seconds(ring, 8, on(topology)) == exactly(14, 14 / 8 * N)
    for hosts, ratio in [([4, 2], 2), ([4, 4], 4), ([4, 4], 1.5)]:
        p = hosts[0] * hosts[1]
        network = on(FatTree(hosts=hosts, oversubscription=[ratio]), placement="cyclic")
        assert seconds(ring, p, network) == exactly(2 * (p - 1), 2 * (p - 1) / p * N * ratio)


def test_halving_crosses_with_its_longest_messages():
    """``crossing``: share of the vector in messages between switches, in each of both phases."""
    for hosts, ratio, crossing in [([4, 2], 2, 1 / 2), ([4, 4], 4, 1 / 2 + 1 / 4), ([2, 4, 2], 1, 1)]:
        p = int(np.prod(hosts))
        tree = FatTree(hosts=hosts, oversubscription=[ratio] + [1] * (len(hosts) - 2))
        whole = 2 * N * ((p - 1) / p + crossing * (ratio - 1))
        assert seconds(halving_doubling, p, on(tree)) == exactly(2 * np.log2(p), whole)


def test_direct_takes_as_long_as_its_busiest_link():
    """``flows``: on the busiest link, by its bandwidth; all last as long."""
    for topology, p, flows in [
        (FatTree(hosts=[4, 2]), 8, 7),  # the port
        (FatTree(hosts=[4, 2], oversubscription=[2]), 8, 16 / 2),
        (FatTree(hosts=[4, 4], oversubscription=[4]), 16, 48),
        (Torus(sides=[8]), 8, 1 + 2 + 3 + 4),
        (Torus(sides=[8], widths=[2]), 8, 7),
        (Dragonfly(groups=4, routers=2, hosts=1), 8, 7),
        (Dragonfly(groups=4, routers=2, hosts=2), 16, 4 + 8 + 16),
    ]:
        expected = max(flows, p - 1)
        assert seconds(direct, p, on(topology)) == exactly(2, 2 * expected * N / p)


def test_server_sends_one_by_one():
    """``times``: of messages that have a port for themselves."""
    for topology, p, times in [
        (FatTree(hosts=[4, 2], oversubscription=[4]), 8, 7),
        (FatTree(hosts=[4, 2], oversubscription=[8]), 8, 3 + 4 * 2),
        (FatTree(hosts=[4, 4], oversubscription=[8]), 16, 3 + 12 * 2),
        (Torus(sides=[4, 4]), 16, 15),
        (Torus(sides=[2, 2, 2], widths=[1, 0.5, 0.25]), 8, 4 * 4 + 2 * 2 + 1),
    ]:
        assert seconds(parameter_server, p, on(topology)) == exactly(2 * (p - 1), 2 * times * N)


def test_a_tree_that_is_wide_enough_is_a_crossbar():
    """Of schemes with one message at a port."""
    for name in ("ring", "halving_doubling", "butterfly", "binomial", "parameter_server", "chain"):
        program = registry.find("aggregation", name)
        for ranks in (5, 16):
            wide = seconds(program, ranks, on(FatTree(hosts=[4, 2, 2])))
            assert wide == pytest.approx(seconds(program, ranks, PLAIN), rel=1e-9), name


def test_settings_of_a_site():
    tree = FatTree(hosts=[4, 2], oversubscription=[4])
    assert seconds(ring, 8, on(tree, placement="cyclic", background=0.5)) == exactly(14, 14 / 8 * N * 8)
    slow = on(tree, slow={"switch 0.1 down": 0.25})
    assert seconds(ring, 8, slow) == exactly(14, 14 / 8 * N * 4)
    unused = on(Torus(sides=[5]), slow={"router 3 +0": 0})
    assert seconds(ring, 2, unused) == exactly(2, N)
    two_ports = seconds(direct, 3, on(FatTree(hosts=[4]), ports=2))
    assert two_ports == exactly(2, 2 * 4 * -(-N // 12))  # the two messages of a host take different ports
    hops = seconds(parameter_server, 8, on(tree, hop_seconds=1e-3))
    assert hops == pytest.approx(14 * (ALPHA + N * BETA) + 2 * 4 * 2 * 1e-3, rel=1e-9)
    overhead = seconds(parameter_server, 3, on(tree, overhead_seconds=1e-3))
    assert overhead == pytest.approx(4 * (1e-3 + ALPHA + N * BETA), rel=1e-9)
    places = {Site(placement="random", seed=seed).place(tree, 8).tobytes() for seed in range(5)}
    assert len(places) == 5
    assert {tuple(sorted(np.frombuffer(place, np.int64))) for place in places} == {tuple(range(8))}


@pytest.mark.parametrize("sends", [True, False])
def test_the_overhead_of_a_message_occupies_both_its_ranks(sends):
    async def program(comm):
        """Rank 0 has two short messages under way at once."""
        move = comm.send if (comm.rank == 0) == sends else comm.recv
        peers = [1, 2] if comm.rank == 0 else [0]
        for task in [comm.start(move(phantom(1, "float32"), peer), shared_tags=True) for peer in peers]:
            await task

    overhead = virtual_time.seconds(3, program, on(FatTree(hosts=[4]), overhead_seconds=1e-3))
    assert overhead == pytest.approx(2e-3 + ALPHA + 4 * BETA, rel=1e-9)


def test_ranks_of_a_host_share_its_port_and_not_each_others_memory():
    inside = replace(on(FatTree(hosts=[2, 1])).on(2), inside=Link(ALPHA, BETA / 10))
    assert seconds(parameter_server, 2, inside) == exactly(2, 2 * N / 10)

    async def pairs(comm):
        """Ranks 0 and 1 send to 2 and 3 at once."""
        buffer, peer = phantom(N // 4, "float32"), (comm.rank + 2) % 4
        await (comm.send(buffer, peer) if comm.rank < 2 else comm.recv(buffer, peer))

    assert virtual_time.seconds(4, pairs, inside) == exactly(1, 2 * N)


def test_shares_are_max_min_fair():
    """No link carries more than it can, and each flow has a full link on which none is faster."""
    for seed in range(20):
        draw = random.Random(seed)
        bandwidths = np.array([draw.choice([0.5, 1.0, 3.0, draw.random() + 0.1]) for _ in range(7)])
        routes = [np.array(draw.sample(range(7), draw.randint(1, 4))) for _ in range(draw.randint(1, 30))]
        rates = fair_shares(routes, bandwidths)
        loads = np.zeros(7)
        fastest = np.zeros(7)
        for route, rate in zip(routes, rates, strict=True):
            loads[route] += rate
            fastest[route] = np.maximum(fastest[route], rate)
        assert (loads <= bandwidths * (1 + 1e-9)).all()
        for route, rate in zip(routes, rates, strict=True):
            full = loads[route] >= bandwidths[route] * (1 - 1e-9)
            assert (full & (fastest[route] <= rate * (1 + 1e-9))).any()


def test_routes_are_of_known_links_and_join_their_ends():
    for topology in [
        FatTree(hosts=[3, 2, 4], oversubscription=[2, 1.5]),
        Torus(sides=[3, 4, 2], hosts=2),
        Torus(sides=[1, 5]),
        Dragonfly(groups=5, routers=3, hosts=2, between=2.0),
    ]:
        links, used = topology.links, set()
        assert all(width > 0 for width in links.values())
        for source in range(topology.places):
            assert topology.route(source, source) == []
            for dest in range(topology.places):
                route = topology.route(source, dest)
                used |= {*route}
                assert len(set(route)) == len(route) == len(topology.route(dest, source))
                if source // topology.block == dest // topology.block:
                    assert route == []
        assert used == set(links)


def test_routes_by_hand():
    assert Torus(sides=[3, 4], hosts=2).route(0, 13) == ["router 0,0 +0", "router 1,0 +1", "router 1,1 +1"]
    assert Torus(sides=[5]).route(0, 4) == ["router 0 -0"]
    ups, downs = ["switch 0.0 up", "switch 1.0 up"], ["switch 1.1 down", "switch 0.3 down"]
    assert FatTree(hosts=[2, 2, 2]).route(1, 7) == ups + downs
    assert Dragonfly(groups=3, routers=2, hosts=1).route(0, 4) == ["router 0 to 1", "group 0 to 2"]


@pytest.mark.parametrize(
    "too_large",
    [
        partial(FatTree, hosts=[10**9]),
        partial(Torus, sides=[1] * 3_000_000),
        partial(Dragonfly, groups=1, routers=100_000, hosts=1),
    ],
)
def test_a_cluster_has_a_size_that_fits_in_memory(too_large):
    with pytest.raises(ValueError, match=r"has \d+ places for hosts and \d+ links, but may have at most"):
        too_large()


def test_a_network_file_has_a_topology(tmp_path):
    file = tmp_path / "lan.toml"
    file.write_text(
        f"[network]\ngamma = 0\n[link]\nalpha = {ALPHA}\nbeta = {BETA}\n"
        "[topology]\nname = 'fat_tree'\nhosts = [4, 2]\noversubscription = [2]\nplacement = 'cyclic'\n"
    )
    assert seconds(ring, 8, load_network(file).network) == exactly(14, 14 / 8 * N * 2)
    file.write_text(file.read_text().replace("[4, 2]", "4"))
    with pytest.raises(ValueError, match=r"lan.toml: topology: setting 'hosts' must be list\[int\], not 4$"):
        load_network(file)
