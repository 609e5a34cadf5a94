"""Graphs for gossip: connected; doubly stochastic mixing; every rank receives a push in every step."""

import numpy as np
from contract.tiny import mixing_matrix

from hpcdl.training.parts.topologies import GRAPHS, neighbours, parities, pushes

RANKS = [*range(1, 18), 31, 32, 36]


def test_mixing_is_symmetric_and_doubly_stochastic_and_connects_all_ranks():
    for graph in GRAPHS:
        for ranks in RANKS:
            for seed in (0, 7):
                links = neighbours(graph, ranks, seed)
                assert all(rank not in others for rank, others in enumerate(links))
                weights = mixing_matrix(links)
                assert np.array_equal(weights, weights.T)
                assert np.allclose(weights.sum(axis=0), 1, rtol=0, atol=1e-12)
                assert (weights >= -1e-15).all()
                assert (np.linalg.matrix_power(weights + np.eye(ranks), ranks) > 0).all()  # connected
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


def test_links_between_the_colours_reach_everybody():
    for graph in GRAPHS:
        for ranks in RANKS:
            links = neighbours(graph, ranks, 5)
            parity = parities(links)
            linked = np.eye(ranks)
            for rank, others in enumerate(links):
                for other in others:
                    linked[rank, other] = parity[rank] != parity[other]
            assert (np.linalg.matrix_power(linked, ranks) > 0).all()


def test_every_rank_receives_a_push_in_every_step():
    for graph in GRAPHS:
        for ranks in RANKS:
            for step in range(12):
                links = pushes(graph, ranks, step, 9)
                assert len(links) == ranks
                assert all(rank not in targets for rank, targets in enumerate(links))
                assert {target for targets in links for target in targets} == (
                    set(range(ranks)) if ranks > 1 else set()
                )


def test_a_stopped_rank_stops_all_ranks_within_p_minus_1_steps():
    """So no rank gets p steps ahead of another, even with eager messages."""
    for graph in GRAPHS:
        for ranks in (2, 5, 8, 13):
            for first in range(6):
                stopped = {first % ranks}
                for step in range(first, first + ranks - 1):
                    links = pushes(graph, ranks, step, 9)
                    stopped |= {target for rank in stopped for target in links[rank]}
                assert stopped == set(range(ranks))
