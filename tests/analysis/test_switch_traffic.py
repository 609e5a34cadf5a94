"""Bytes through each level of switches, against sums by hand."""

import numpy as np
import pytest

from hpcdl.analysis.network.switch_traffic import levels, switch_traffic
from hpcdl.fabric.network import NETWORKS
from hpcdl.fabric.vectors import phantom
from hpcdl.fabric.virtual.simulated import simulated
from hpcdl.registry import find
from hpcdl.report.run.findings import Findings
from hpcdl.report.sections.links import traffic_page as page

ADDRESSES = ["spine.leaf1.n1", "spine.leaf1.n2", "spine.leaf2.n3", "spine.leaf2.n4"]
SIZE = 4000
STEPS = 2


def environment(addresses):
    ranks = [{"hostname": "h", "slurm_topology": address, "affinity": "0"} for address in addresses]
    return {"key": "k", "ranks": ranks}


def recorded(hand, scheme, addresses, **fields):
    """Return a run of some allreduces of SIZE bytes."""
    aggregate, ranks = find("aggregation", scheme), len(addresses)
    events = [[] for _ in range(ranks)]

    async def program(comm):
        for _ in range(STEPS):
            await aggregate(comm, phantom(SIZE // 4))

    simulated(ranks, NETWORKS["ethernet-1g"], events=events).run(program)
    hand.train([[1.0] * STEPS] * ranks, events=events, aggregation=scheme, environment_key="k", **fields)
    return hand.read(environment(addresses))


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("a.b.n1", "a.b.n1", 0),
        ("a.b.n1", "a.b.n2", 1),
        ("a.b.n1", "a.c.n3", 2),
        ("a.b.n1", "d.e.n4", 3),
        ("n1", "n2", 1),
    ],
)
def test_levels_are_counted_up_to_the_common_switch(one, other, expected):
    assert levels([one, other]).tolist() == [[0, expected], [expected, 0]]


def test_a_ring_crosses_the_spine_twice(hand):
    """Of its four links two are within a rack: each carries 2 (p - 1) / p of the vector."""
    (found,) = switch_traffic(recorded(hand, "ring", ADDRESSES))
    assert found.bytes_per_step == (0, 2 * 1.5 * SIZE, 2 * 1.5 * SIZE)


def test_ranks_of_one_node_cross_no_switch(hand):
    (found,) = switch_traffic(recorded(hand, "butterfly", [ADDRESSES[0], ADDRESSES[0], *ADDRESSES[2:]]))
    assert found.bytes_per_step == (2 * SIZE, 2 * SIZE, 4 * SIZE)


@pytest.mark.parametrize(
    ("addresses", "fields"),
    [(["unknown"] * 4, {}), (ADDRESSES[:1] * 4, {}), (ADDRESSES, {"network": "ethernet-1g"})],
    ids=["no topology", "one node", "simulated"],
)
def test_without_nodes_there_is_no_traffic(hand, addresses, fields):
    assert not switch_traffic(recorded(hand, "ring", addresses, **fields))


def test_the_report_shows_each_level(hand):
    section = page(Findings(recorded(hand, "ring", ADDRESSES), "run"))
    (table,) = section.tables
    assert table.header[2:] == ("within nodes", "1 level", "2 levels", "through the highest")
    assert len(table.rows) == 1
    assert np.isclose(float(table.rows[0][-1].rstrip(" %")), 50)
