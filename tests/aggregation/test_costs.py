"""Costs stated in docstrings equal the counted messages and bytes and the virtual time."""

from itertools import product
from math import ceil, log2

import numpy as np
import pytest
from contract.aggregations import IN_SEGMENTS, NATIVE, OTHERS, SEGMENTED, SPARSE, UNCOSTED, called, scheme
from contract.generated import RANKS, generated, on_any_ranks
from contract.virtual_time import seconds
from hypothesis import strategies as st

from hpcdl import registry
from hpcdl.aggregation.parts import cost
from hpcdl.aggregation.parts.traits import offered
from hpcdl.aggregation.tree import tree
from hpcdl.fabric.network import NETWORKS, Link, Network
from hpcdl.fabric.vectors import phantom
from hpcdl.fabric.virtual.clocks import in_process, simulated

SEVERAL_RANKS = RANKS.filter(lambda ranks: ranks > 1)
ALLREDUCES = [name for name in registry.names("aggregation") if name not in {*UNCOSTED, *SPARSE}]
COSTED = [("allreduce", name) for name in ALLREDUCES] + [(one, name) for one, name in OTHERS if name not in NATIVE]
NODES = product(("hierarchical", "leader"), (1, 3, 4, 100))
SET = [("allreduce", name, {"ranks_per_node": size}) for name, size in NODES]
SET += [(*one, {"optimal": "latency"}) for one in COSTED if "optimal" in registry.settings_of(offered(*one))]
COUNTED = [(*one, {}) for one in COSTED] + SET + [("allreduce", "swing", {"ports": 2})]
COUNTED += [("allreduce", name, {"segment_bytes": 128}) for name in SEGMENTED]
TIMED = [(*one, {"segment_bytes": length}) for one in IN_SEGMENTS for length in (3200, 1 << 30)]
TIMED += SET + [(*one, {}) for one in COSTED if one not in IN_SEGMENTS]
OF = {"busiest rank": max, "all ranks": sum}
SLOW_ADDER = Network("slow adder", Link(alpha=0.0, beta=1e-9), source="none", gamma=1e-7)
LONG_WAY = Network("long way", Link(alpha=0.3, beta=1e-9), source="none")
MODELS = [NETWORKS[n] for n in ("ethernet-1g", "gemini")] + [SLOW_ADDER, LONG_WAY]


def counted(collective, name, ranks, length, **settings):
    """Return each rank's messages and bytes for float32 vectors."""
    world = in_process(ranks)
    rows = np.zeros((ranks, length), np.float32)
    world.run(lambda comm: called(collective, name, comm, rows[comm.rank], **settings))
    return {"Messages": world.messages, "Bytes": world.bytes}


def volumes(collective, name, settings):
    """Return (quantity, ranks, formula) of each stated cost without times."""
    lines = cost.costs(offered(collective, name), settings).items()
    return [(*line.partition(", ")[::2], formula) for line, formula in lines if not line.startswith("Time")]


def test_the_docstring_states_what_it_costs():
    """Its time is stated for some number of ranks."""
    for one in COSTED:
        function = offered(*one)
        assert {line.partition(", ")[0] for line in cost.costs(function)} == {"Messages", "Bytes", "Time"}
        assert any(cost.time(function, p, 1e6, 1e-6, 1e-9, 1e-10) is not None for p in range(2, 10))


@pytest.mark.parametrize(("collective", "name", "settings"), COUNTED)
@on_any_ranks
def test_messages_and_bytes(collective, name, settings, ranks):
    """Messages are exact; a rank's bytes differ by at most one chunk, n/p rounded up, if p does not divide n > 1."""
    few = (0, 1) if collective == "allreduce" else ()
    for length in (*few, 64 * ranks, 1009 // ranks * ranks if collective == "all_to_all" else 1009):
        sent = counted(collective, name, ranks, length, **settings)
        chunk = 4 * ceil(length / ranks) if length % ranks else 0
        for what, stated_for, formula in volumes(collective, name, settings):
            if (stated_for == "p a power of two" and ranks & (ranks - 1)) or (what == "Bytes" and length <= 1):
                continue
            which = "all ranks" if stated_for == "all ranks" else "busiest rank"
            slack = 0 if what == "Messages" else chunk if which == "busiest rank" else chunk * ranks
            wanted = cost.cost(formula, ranks, 4 * length)
            assert abs(OF[which](sent[what]) - wanted) <= slack, f"{what}, {which}, {length} elements"


@pytest.mark.parametrize(("collective", "name", "settings"), TIMED)
@on_any_ranks
def test_simulated_time(collective, name, settings, ranks):
    payload, function = phantom(1600 * ranks), offered(collective, name)
    for network in MODELS:
        alpha, beta = network.link.alpha, network.link.beta
        stated = cost.time(function, ranks, payload.nbytes, alpha, beta, network.gamma, settings)
        if stated is not None:
            took = seconds(ranks, lambda comm: called(collective, name, comm, payload, **settings), network)
            assert took == pytest.approx(stated, rel=1e-9), network.name


@pytest.mark.parametrize("ranks", [2, 7, 16])
@pytest.mark.parametrize("name", SEGMENTED)
def test_simulated_time_of_unequal_segments(name, ranks):
    """Segments of whole elements are slightly unequal."""
    network, payload = NETWORKS["ethernet-10g"], phantom(1_000_003)
    stated = cost.time(scheme(name), ranks, payload.nbytes, network.link.alpha, network.link.beta, network.gamma)
    if stated is not None:
        took = seconds(ranks, lambda comm: scheme(name)(comm, payload), network)
        assert took == pytest.approx(stated, rel=1e-3)


def test_an_unbalanced_tree_receives_from_its_deepest_branch_last():
    """0 is below 2; 1 and 2 are below 3. The messages of 0 and 2 overlap with those of 1 and 3."""
    n = 400_000
    for network in MODELS:
        took = seconds(4, lambda comm: tree(comm, phantom(n // 4)), network)
        message = network.link.alpha + n * network.link.beta
        assert took == pytest.approx(4 * message + 2 * n * network.gamma, rel=1e-9)


@generated(
    20,
    *({"ranks": ranks, "segments": segments, "network": SLOW_ADDER} for ranks in (2, 9) for segments in (1, 32)),
    ranks=SEVERAL_RANKS,
    segments=st.integers(1, 32),
    network=st.sampled_from(MODELS),
)
def test_double_tree_s_time_has_bounds(ranks, segments, network):
    payload, link = phantom(800 * segments), network.link
    took = seconds(ranks, lambda comm: scheme("double_tree")(comm, payload, segment_bytes=1600), network)
    message, addition = link.alpha + 1600 * link.beta, 1600 * network.gamma
    most = (4 * ceil(log2(ranks)) + 6 * (segments - 1)) * (message + addition)
    assert 4 * segments * (ranks - 1) / ranks * message * (1 - 1e-9) <= took <= most


@pytest.mark.parametrize(("ranks", "rows"), [(6, 1), (6, 2), (6, 3), (16, 2), (12, 12)])
def test_a_torus_of_given_rows(ranks, rows):
    torus, network = scheme("torus"), NETWORKS["gemini"]
    payload, link, own = phantom(6400 * ranks), network.link, {"rows": rows}
    world = simulated(ranks, network)
    world.run(lambda comm: torus(comm, payload, **own))
    messages = cost.costs(torus, own)["Messages, busiest rank"]
    assert max(world.messages) == cost.cost(messages, ranks, payload.nbytes)
    stated = cost.time(torus, ranks, payload.nbytes, link.alpha, link.beta, network.gamma, own)
    assert world.now == pytest.approx(stated, rel=1e-9)


async def halves(comm, buffer, *, parts: int = 4, width: int = 1):
    """A function with formulas, and no scheme.

    k = 2*parts
    m = alpha*k
    Messages, busiest rank: k
    Time, p == 1: 0
    Time, p > k: m
    """


def test_formulas_use_named_terms_and_settings():
    assert cost.costs(halves) == {
        "Messages, busiest rank": "(2*4)",
        "Time, p == 1": "0",
        "Time, p > (2*4)": "(alpha*(2*4))",
    }
    assert cost.costs(halves, {"parts": 3})["Messages, busiest rank"] == "(2*3)"
    assert cost.time(halves, 1, 0, 5, 0, 0) == 0
    assert cost.time(halves, 8, 0, 5, 0, 0) is None
    assert cost.time(halves, 9, 0, 5, 0, 0) == 40
    assert cost.time(halves, 8, 0, 5, 0, 0, {"parts": 3}) == 30
    # no time is stated for a setting outside the formulas
    assert cost.time(halves, 9, 0, 5, 0, 0, {"width": 1}) is None
    assert cost.time(tree, 7, 100, 1, 1, 1, {"arity": 3}) is None
