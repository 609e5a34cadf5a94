"""Compressed gossip, CHOCO-SGD: the paper's algorithm, a constant average, equal copies."""

import numpy as np
import pytest
from contract import tiny
from contract.compression import COMPRESSORS, planned
from contract.compressors import decoded, encoded
from contract.schedules import SCHEDULES
from contract.sessions import SEED
from contract.tiny import PARAMETERS, RATE, gradient, mixing_matrix, parameters, replicas, starts, tiny_session

from hpcdl.aggregation.parts.messages import padded
from hpcdl.commands.parts.array_contracts import layout
from hpcdl.compression.parts.message_encoders import HEADER as ENTRIES_HEADER
from hpcdl.fabric.virtual.inprocess import in_process
from hpcdl.training.d_psgd import check_compression, d_psgd
from hpcdl.training.parts.topologies import GRAPHS, neighbours

STILL = {"learning_rate": lambda _step: 0.0}
EXACT = {"density": 1.0}
"""Settings of a ``top_k`` that sends all entries."""


def fits(compressor):
    try:
        check_compression(planned(compressor, "allgather"), {"consensus_step": 0.1})
    except ValueError:
        return False
    return True


ABLE = [one for one in COMPRESSORS if fits(one)]


def train(own, compressor=None, *, seed=0, recorders=None, keys=None, settings=None, **choice):
    """Return the sessions of ranks that start from the rows of ``own``, and their world."""
    chosen = None if compressor is None else planned(compressor, "allgather", **settings or {})
    world, keys = in_process(len(own), seed), {"compression": chosen, **(keys or {})}
    place = {"world": world, "own": own, "recorders": recorders, "pool": replicas(16)}
    return tiny.train(d_psgd, len(own), keys=keys, **place, **choice), world


def test_compressors_whose_errors_are_small_are_accepted():
    assert {"top_k", "random_k", "one_bit", "ef_sign", "deep_compression", "fp16", "bf16", "threshold"} <= set(
        ABLE
    )
    assert not {"sign", "qsgd", "terngrad", "dgc", "power_sgd"} & set(ABLE)


def test_the_error_of_a_message_is_less_than_the_vector():
    for compressor in ABLE:
        where = layout([(6, 5), (7,)], dtype="float64")
        chosen = planned(compressor, "allgather")
        for seed in range(20):
            vector = np.random.default_rng(seed).standard_normal(37) * 10.0 ** (seed % 5 - 2)
            encoder = chosen.encoder(chosen.make(where), where)
            message, _ = encoded(encoder, vector, step=seed)
            sent = decoded(encoder, message, slice(0, 37), "float64")
            assert np.linalg.norm(vector - sent) <= np.linalg.norm(vector)


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("ranks", range(1, 10))
def test_exact_messages_with_step_1_make_dense_gossip(ranks, graph):
    own, mixing = starts(ranks), ("overlap", "after")[(ranks + len(graph)) % 2]
    dense = parameters(train(own, graph=graph, mixing=mixing)[0])
    choice = {"graph": graph, "mixing": mixing, "consensus_step": 1.0}
    found = parameters(train(own, "top_k", settings=EXACT, **choice)[0])
    np.testing.assert_allclose(found, dense, rtol=0, atol=1e-12)


@pytest.mark.parametrize("mixing", ["overlap", "after"])
@pytest.mark.parametrize(("ranks", "graph"), [(2, "ring"), (6, "torus"), (7, "random"), (9, "exponential")])
def test_compressed_gossip_is_the_papers_algorithm(ranks, graph, mixing):
    """Compare with a loop over all ranks at once; top-k by sorting."""
    gamma, steps, weights = 0.2, 4, mixing_matrix(neighbours(graph, ranks, SEED))
    x, copies = starts(ranks), np.zeros((ranks, PARAMETERS))
    mine = tiny_session()
    for step in range(steps):
        update = RATE * np.array([gradient(mine, step, rank, ranks, x[rank]) for rank in range(ranks)])
        if mixing == "after":
            x = x - update
        for rank in range(ranks):
            difference = x[rank] - copies[rank]
            sent = np.argsort(-np.abs(difference), kind="stable")[:3]
            copies[rank, sent] += difference[sent]
        x = x + gamma * (weights @ copies - copies)
        if mixing == "overlap":
            x = x - update
    choice = {"graph": graph, "mixing": mixing, "consensus_step": gamma}
    sessions, _ = train(starts(ranks), "top_k", keys={"steps": steps}, settings={"density": 0.2}, **choice)
    np.testing.assert_allclose(parameters(sessions), x, rtol=0, atol=1e-12)


@pytest.mark.parametrize("compressor", ABLE)
def test_the_average_is_kept_and_copies_are_equal_in_all_schedules(compressor):
    for seed in SCHEDULES[:9:2]:
        ranks, graph = seed + 1, GRAPHS[seed % len(GRAPHS)]
        own = starts(ranks, seed)
        keys = {"steps": 3, **STILL}
        sessions, _ = train(own, compressor, seed=seed, keys=keys, graph=graph, consensus_step=0.05)
        found = parameters(sessions)
        np.testing.assert_allclose(found.mean(axis=0), own.mean(axis=0), rtol=0, atol=1e-13)
        links = neighbours(graph, ranks, sessions[0].inputs.seed)
        for rank, mine in enumerate(sessions):
            for other in links[rank]:
                copy = sessions[other].vectors[f"copy of rank {rank}"]
                assert np.array_equal(copy, mine.vectors["own copy"])
        again, _ = train(own, compressor, seed=seed + 1, keys=keys, graph=graph, consensus_step=0.05)
        assert np.array_equal(parameters(again), found)


def test_dense_messages_come_first_and_others_have_their_true_length():
    def run(warmup):
        settings = {"density": 0.2, "warmup_steps": warmup}
        return train(starts(5), "top_k", keys={"steps": 4}, settings=settings, consensus_step=0.2)

    dense, mixed, sparse = run(4), run(2), run(0)
    count = 5 * 2 * 4  # messages: two neighbours, four steps
    message = padded(ENTRIES_HEADER + 3 * 4 + 3 * 8)
    evaluation = sum(train(starts(5), keys={"steps": 4})[1].bytes) - count * PARAMETERS * 8
    assert sum(dense[1].bytes) == evaluation + count * PARAMETERS * 8
    assert sum(sparse[1].bytes) <= evaluation + count * message
    assert sum(mixed[1].bytes) == (sum(dense[1].bytes) + sum(sparse[1].bytes)) / 2
    assert sum(mine.compressed.warmup_bytes for mine in mixed[0]) == count / 2 * PARAMETERS * 8
    saved = sum(mine.compressed.saved_bytes for mine in sparse[0])
    assert saved == sum(dense[1].bytes) - sum(sparse[1].bytes)


def test_memory_is_that_of_the_copies():
    for graph in ["ring", "complete"]:
        sessions, _ = train(starts(6), "top_k", graph=graph, consensus_step=0.1)
        copies = 1 + (2 if graph == "ring" else 5)
        assert {mine.memory_bytes for mine in sessions} == {(4 + copies) * PARAMETERS * 8}
