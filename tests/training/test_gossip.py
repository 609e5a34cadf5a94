"""Gossip: graphs, equations of the papers, constant mean over ranks, no deadlock; compressed, it is CHOCO-SGD."""

import numpy as np
import pytest
from contract import tiny
from contract.compression import COMPRESSORS, planned
from contract.compressors import decoded, encoded
from contract.schedules import SCHEDULES, ranks_in
from contract.sessions import SEED
from contract.tiny import PARAMETERS, RATE, gradient, mixing_matrix, parameters, replicas, starts, tiny_session

from hpcdl.aggregation.parts.messages import padded
from hpcdl.commands.parts.contracts import layout
from hpcdl.compression.parts.selection import HEADER as ENTRIES_HEADER
from hpcdl.fabric.virtual.clocks import in_process
from hpcdl.optim.sgd import SGD, Nesterov
from hpcdl.trace.recorder import Recorder
from hpcdl.training.ad_psgd import ad_psgd
from hpcdl.training.gossip import check_compression, d_psgd, stochastic_gradient_push
from hpcdl.training.parts.topologies import GRAPHS, neighbours, parities, pushes
from hpcdl.training.synchronous import synchronous

STILL = {"learning_rate": lambda _step: 0.0}


def train(ranks, strategy, **settings):
    """Return the parameters of all ranks (ranks, n)."""
    return tiny.parameters(tiny.train(strategy, ranks, **settings))


@pytest.mark.parametrize("order", ["overlap", "after"])
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 6, 7])
def test_d_psgd_is_the_papers_formula(ranks, graph, order):
    """X <- W X - rate G(X), or W (X - rate G(X)), for all ranks at once; an evaluation has the distance from the mean."""
    recorders = [Recorder(events=False) for _ in range(ranks)]
    weights, x, mine = mixing_matrix(neighbours(graph, ranks, SEED)), starts(ranks), tiny_session()
    for step in range(mine.steps):
        update = RATE * np.array([gradient(mine, step, rank, ranks, x[rank]) for rank in range(ranks)])
        x = weights @ x - update if order == "overlap" else weights @ (x - update)
    found = train(ranks, d_psgd, own=starts(ranks), recorders=recorders, graph=graph, mixing=order)
    np.testing.assert_allclose(found, x, rtol=0, atol=1e-13)
    distance = np.sqrt(((x - x.mean(axis=0)) ** 2).sum(axis=1).mean())
    assert recorders[0].evaluations[-1].consensus == pytest.approx(distance)


@pytest.mark.parametrize("optimizer", [lambda: SGD(momentum=0.9, weight_decay=0.01), Nesterov])
@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_d_psgd_on_the_complete_graph_is_synchronous_training(ranks, optimizer):
    (expected,) = train(1, synchronous, optimizer=optimizer, keys={"steps": 10})
    for found in train(ranks, d_psgd, optimizer=optimizer, keys={"steps": 10}, graph="complete", mixing="after"):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_push_is_the_papers_algorithm(ranks, graph):
    """Compare with products of each step's column-stochastic matrix."""
    x, w, mine = starts(ranks), np.ones(ranks), tiny_session()
    z = x.copy()
    for step in range(mine.steps):
        x -= RATE * np.array([gradient(mine, step, rank, ranks, z[rank]) for rank in range(ranks)])
        columns = np.zeros((ranks, ranks))
        for rank, targets in enumerate(pushes(graph, ranks, step, mine.inputs.seed)):
            columns[[rank, *targets], rank] = 1 / (1 + len(targets))
        x, w = columns @ x, columns @ w
        z = x / w[:, np.newaxis]
    found = train(ranks, stochastic_gradient_push, own=starts(ranks), graph=graph)
    np.testing.assert_allclose(found, z, rtol=0, atol=1e-13)


def test_push_averages_exactly_within_log2_p_rounds_and_not_before():
    for rounds in range(1, 5):
        own = starts(2**rounds)
        for steps in (rounds - 1, rounds) if rounds > 1 else (1,):
            found = train(len(own), stochastic_gradient_push, own=own, keys={"steps": steps, **STILL})
            distance = np.abs(found - own.mean(axis=0)).max()
            assert distance < 1e-14 if steps == rounds else distance > 1e-3


@pytest.mark.slow
def test_ad_psgd_keeps_the_mean_in_any_schedule():
    """The average of a pair is atomic: without gradients the mean does not change."""
    for seed in SCHEDULES:
        own = starts(ranks_in(seed), seed)
        place = {"seed": seed, "own": own, "pool": replicas(16), "keys": {"steps": 2, **STILL}}
        found = train(len(own), ad_psgd, graph=GRAPHS[seed % len(GRAPHS)], **place)
        np.testing.assert_allclose(found.mean(axis=0), own.mean(axis=0), rtol=0, atol=1e-13)
        assert np.linalg.norm(found - own.mean(axis=0)) < np.linalg.norm(own - own.mean(axis=0))


def test_ad_psgd_makes_all_steps_and_records_their_staleness():
    for ranks in [1, 2, 5, 8]:
        recorders = [Recorder(events=False) for _ in range(ranks)]
        tiny.train(ad_psgd, ranks, recorders=recorders, keys={"steps": 20, "evaluate_every": 2.0})
        assert sum(len(recorder.steps) for recorder in recorders) == 20 * ranks
        updates = [update for recorder in recorders for update in recorder.updates]
        assert len(updates) == 20 * ranks
        for rank, recorder in enumerate(recorders):
            assert [row.worker for row in recorder.updates] == [rank] * len(recorder.steps)
            assert all(0 <= row.staleness <= row.version for row in recorder.updates)
        for active, recorder in zip(parities(neighbours("ring", ranks)), recorders, strict=True):
            # only its own average changes an active rank
            assert active or {row.staleness for row in recorder.updates} == {int(ranks > 1)}
        assert [row.step for row in recorders[0].evaluations] == [4, 8, 12, 16, 20]
        assert all(np.isfinite(row.consensus) for row in recorders[0].evaluations)


RANKS = [*range(1, 18), 31, 32, 36]


def test_mixing_is_symmetric_and_doubly_stochastic_and_links_between_the_colours_connect_all_ranks():
    for graph in GRAPHS:
        for ranks in RANKS:
            for seed in (0, 7):
                links = neighbours(graph, ranks, seed)
                assert all(rank not in others for rank, others in enumerate(links))
                weights = mixing_matrix(links)
                assert np.array_equal(weights, weights.T)
                assert np.allclose(weights.sum(axis=0), 1, rtol=0, atol=1e-12)
                assert (weights >= -1e-15).all()
                parity = np.array(parities(links))
                linked = (weights > 0) * (parity[:, np.newaxis] != parity) + np.eye(ranks)
                assert (np.linalg.matrix_power(linked, ranks) > 0).all()
                if ranks > 1:  # mixing shrinks differences
                    assert np.sort(np.abs(np.linalg.eigvalsh(weights)))[-2] < 1 - 1e-3


def test_graphs_have_the_links_of_their_name():
    assert neighbours("ring", 2) == [(1,), (0,)]
    assert neighbours("torus", 12)[0] == (1, 3, 4, 8)  # 3 rows of 4
    assert neighbours("torus", 7) == neighbours("ring", 7)
    assert neighbours("exponential", 11)[0] == (1, 2, 3, 4, 7, 8, 9, 10)
    assert {len(others) for others in neighbours("complete", 6)} == {5}
    many = neighbours("random", 64, 3)
    assert max(map(len, many)) <= 4
    assert many == neighbours("random", 64, 3) != neighbours("random", 64, 4)


@pytest.mark.parametrize("graph", GRAPHS)
def test_every_rank_receives_a_push_in_every_step_and_a_stopped_one_stops_all_within_p_minus_1_steps(graph):
    """So no rank gets p steps ahead of another, even with eager messages."""
    for ranks in RANKS:
        for step in range(12):
            links = pushes(graph, ranks, step, 9)
            assert len(links) == ranks
            assert all(rank not in targets for rank, targets in enumerate(links))
            assert {target for targets in links for target in targets} == set(range(ranks if ranks > 1 else 0))
    for ranks in (2, 5, 8, 13):
        for first in range(6):
            stopped = {first % ranks}
            for step in range(first, first + ranks - 1):
                links = pushes(graph, ranks, step, 9)
                stopped |= {target for rank in stopped for target in links[rank]}
            assert stopped == set(range(ranks))


def fits(compressor):
    try:
        check_compression(planned(compressor, "allgather"), {"consensus_step": 0.1})
    except ValueError:
        return False
    return True


ABLE = [one for one in COMPRESSORS if fits(one)]


def choco(own, compressor=None, *, seed=0, recorders=None, keys=None, settings=None, **choice):
    """Return the sessions of ranks that start from the rows of ``own``, and their world."""
    chosen = None if compressor is None else planned(compressor, "allgather", **settings or {})
    world, keys = in_process(len(own), seed), {"compression": chosen, **(keys or {})}
    place = {"world": world, "own": own, "recorders": recorders, "pool": replicas(16)}
    return tiny.train(d_psgd, len(own), keys=keys, **place, **choice), world


def test_the_error_of_a_message_of_an_accepted_compressor_is_less_than_the_vector():
    assert {"top_k", "random_k", "one_bit", "ef_sign", "deep_compression", "fp16", "bf16", "threshold"} <= {*ABLE}
    assert not {"sign", "qsgd", "terngrad", "dgc", "power_sgd"} & {*ABLE}
    for compressor in ABLE:
        where = layout([(6, 5), (7,)], dtype="float64")
        chosen = planned(compressor, "allgather")
        for seed in range(20):
            vector = np.random.default_rng(seed).standard_normal(37) * 10.0 ** (seed % 5 - 2)
            encoder = chosen.encoder(chosen.make(where), where)
            message, _ = encoded(encoder, vector, step=seed)
            sent = decoded(encoder, message, slice(0, 37), "float64")
            assert np.linalg.norm(vector - sent) <= np.linalg.norm(vector)


@pytest.mark.parametrize("mixing", ["overlap", "after"])
@pytest.mark.parametrize(("ranks", "graph"), [(2, "ring"), (6, "torus"), (7, "random"), (9, "exponential")])
def test_compressed_gossip_is_the_papers_algorithm(ranks, graph, mixing):
    """Compare with a loop over all ranks at once; top-k by sorting. A rank has a copy of itself and each neighbour."""
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
    sessions, _ = choco(starts(ranks), "top_k", keys={"steps": steps}, settings={"density": 0.2}, **choice)
    np.testing.assert_allclose(parameters(sessions), x, rtol=0, atol=1e-12)
    copies = [1 + len(others) for others in neighbours(graph, ranks, SEED)]
    assert [mine.memory_bytes for mine in sessions] == [(4 + one) * PARAMETERS * 8 for one in copies]


@pytest.mark.parametrize("compressor", ABLE)
def test_the_average_is_kept_and_copies_are_equal_in_all_schedules(compressor):
    for seed in SCHEDULES[:9:2]:
        ranks, graph = seed + 1, GRAPHS[seed % len(GRAPHS)]
        own = starts(ranks, seed)
        choice = {"keys": {"steps": 3, **STILL}, "graph": graph, "consensus_step": 0.05}
        sessions, _ = choco(own, compressor, seed=seed, **choice)
        found = parameters(sessions)
        np.testing.assert_allclose(found.mean(axis=0), own.mean(axis=0), rtol=0, atol=1e-13)
        links = neighbours(graph, ranks, sessions[0].inputs.seed)
        for rank, mine in enumerate(sessions):
            for other in links[rank]:
                copy = sessions[other].vectors[f"copy of rank {rank}"]
                assert np.array_equal(copy, mine.vectors["own copy"])
        again, _ = choco(own, compressor, seed=seed + 1, **choice)
        assert np.array_equal(parameters(again), found)


def test_dense_messages_come_first_and_others_have_their_true_length():
    def run(warmup):
        settings = {"density": 0.2, "warmup_steps": warmup}
        return choco(starts(5), "top_k", keys={"steps": 4}, settings=settings, consensus_step=0.2)

    dense, mixed, sparse = run(4), run(2), run(0)
    count = 5 * 2 * 4  # messages: two neighbours, four steps
    message = padded(ENTRIES_HEADER + 3 * 4 + 3 * 8)
    evaluation = sum(choco(starts(5), keys={"steps": 4})[1].bytes) - count * PARAMETERS * 8
    assert sum(dense[1].bytes) == evaluation + count * PARAMETERS * 8
    assert sum(sparse[1].bytes) <= evaluation + count * message
    assert sum(mixed[1].bytes) == (sum(dense[1].bytes) + sum(sparse[1].bytes)) / 2
    assert sum(mine.compressed.warmup_bytes for mine in mixed[0]) == count / 2 * PARAMETERS * 8
    assert [mine.compressed.exchanges for mine in mixed[0]] == [{(0, PARAMETERS): 4}] * 5
