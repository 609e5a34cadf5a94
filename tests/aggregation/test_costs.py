"""What a docstring says an aggregation costs is what it costs: in messages, in bytes, and in virtual time."""

from math import ceil

import numpy as np
import pytest
from contract.aggregations import SCHEMES, scheme

from hpcdl import registry
from hpcdl.aggregation.ring import ring
from hpcdl.aggregation.tree import tree
from hpcdl.analysis import cost
from hpcdl.fabric.comm import phantom
from hpcdl.fabric.inprocess import in_process
from hpcdl.fabric.network import NETWORKS, Link, Network
from hpcdl.fabric.simulated import simulated

RANKS = [*range(1, 18), 32, 64]
COSTED = [name for name in registry.names("aggregation") if name != "native"]
OF = {"busiest rank": max, "all ranks": sum}
SLOW_ADDER = Network("slow adder", Link(alpha=0.0, beta=1e-9), source="none", gamma=1e-7)
LONG_WAY = Network("long way", Link(alpha=0.3, beta=1e-9), source="none")
MODELS = [NETWORKS[n] for n in ("ethernet-1g", "ethernet-100g", "gemini", "nvlink-4")] + [SLOW_ADDER, LONG_WAY]


def counted(name, ranks, length):
    """{"Messages": of each rank, "Bytes": of each rank} of float32 vectors."""
    world = in_process(ranks)
    rows = np.zeros((ranks, length), np.float32)
    world.run(lambda comm: scheme(name)(comm, rows[comm.rank]))
    return {"Messages": world.messages, "Bytes": world.bytes}


def volumes(name):
    """The lines that count: (what, of which ranks, formula)."""
    lines = [(*line.partition(", ")[::2], formula) for line, formula in cost.costs(scheme(name)).items()]
    return [line for line in lines if line[0] != "Time"]


@pytest.mark.parametrize("name", COSTED)
def test_the_docstring_states_messages_bytes_and_time(name):
    stated = {line.partition(", ")[0] for line in cost.costs(scheme(name))}
    assert stated == {"Messages", "Bytes", "Time"}
    assert {which for _, which, _ in volumes(name)} <= OF.keys()


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", COSTED)
def test_messages_and_bytes_where_everything_divides(name, ranks):
    length = 64 * ranks
    sent = counted(name, ranks, length)
    for what, which, formula in volumes(name):
        assert OF[which](sent[what]) == cost.cost(formula, ranks, 4 * length), f"{what}, {which}"


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("length", [0, 1])
@pytest.mark.parametrize("name", COSTED)
def test_messages_of_vectors_shorter_than_the_ranks(name, length, ranks):
    sent = counted(name, ranks, length)["Messages"]
    for what, which, formula in volumes(name):
        if what == "Messages":
            assert OF[which](sent) == cost.cost(formula, ranks, 4 * length), which


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("length", [1009, 10_007])
@pytest.mark.parametrize("name", COSTED)
def test_messages_and_bytes_where_nothing_divides(name, length, ranks):
    """A rank's bytes are right to one chunk, the p-th part of the vector rounded up; the messages are exact."""
    sent = counted(name, ranks, length)
    chunk = 4 * ceil(length / ranks)
    for what, which, formula in volumes(name):
        slack = 0 if what == "Messages" else chunk if which == "busiest rank" else chunk * ranks
        assert abs(OF[which](sent[what]) - cost.cost(formula, ranks, 4 * length)) <= slack, f"{what}, {which}"


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", COSTED)
def test_simulated_time(name, ranks):
    payload = phantom(64 * ranks * 100)
    for network in MODELS:
        world = simulated(ranks, network)
        world.run(lambda comm: scheme(name)(comm, payload))
        alpha, beta = network.link.alpha, network.link.beta
        stated = cost.time(scheme(name), ranks, payload.nbytes, alpha, beta, network.gamma)
        if stated is not None:
            assert world.now == pytest.approx(stated, rel=1e-9), network.name


@pytest.mark.parametrize("name", COSTED)
def test_time_is_stated_for_some_number_of_ranks(name):
    assert any(cost.time(scheme(name), p, 1e6, 1e-6, 1e-9, 1e-10) is not None for p in RANKS[1:])


@pytest.mark.parametrize("network", ["ethernet-1g", "infiniband-edr"])
@pytest.mark.parametrize("length", [100_003, 25_600_001])
def test_a_ring_of_64_ranks_is_within_1_percent_of_the_closed_form(length, network):
    p, n, model = 64, 4 * length, NETWORKS[network]
    world = simulated(p, model)
    world.run(lambda comm: ring(comm, phantom(length)))
    closed = 2 * (p - 1) * model.link.alpha + 2 * n * (p - 1) / p * model.link.beta + n * (p - 1) / p * model.gamma
    assert world.now == pytest.approx(closed, rel=0.01)


@pytest.mark.parametrize("network", MODELS)
def test_a_lopsided_tree_hears_its_deepest_branch_last(network):
    """0 is below 2, 1 and 2 are below 3: what passes between 0 and 2 passes while 1 and 3 talk, both ways."""
    n = 400_000
    world = simulated(4, network)
    world.run(lambda comm: tree(comm, phantom(n // 4)))
    message = network.link.alpha + n * network.link.beta
    assert world.now == pytest.approx(4 * message + 2 * n * network.gamma, rel=1e-9)


def test_native_states_no_cost():
    assert cost.costs(scheme("native")) == {}


def test_every_scheme_that_sums_sends():
    """Or the counts above would hold for one that does nothing."""
    for name in set(SCHEMES) - {"native"}:
        assert sum(counted(name, 4, 64)["Bytes"]) >= 2 * 3 * 64 * 4
