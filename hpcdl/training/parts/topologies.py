"""Communication graphs for gossip, their mixing weights, and schedules of directed pushes."""

from collections.abc import Collection, Iterable, Sequence
from itertools import combinations, permutations
from math import isqrt
from typing import Final

import numpy as np

Links = list[tuple[int, ...]]
"""For each rank the ranks that it is linked to, in rising order."""
GRAPHS: Final = ("ring", "torus", "exponential", "complete", "random")


def _links(graph: str, ranks: int, seed: int) -> list[tuple[int, int]]:
    """Return the links of a graph; those of a ring or torus lead to the next rank in the row or column."""
    if graph == "torus":  # the most square grid; a ring if the number is a prime
        rows = next(height for height in range(isqrt(ranks), 0, -1) if ranks % height == 0)
        grid = np.arange(ranks).reshape(rows, -1)
        following = [np.roll(grid, -1, axis).ravel().tolist() for axis in range(2)]
        return [link for others in following for link in enumerate(others)]
    if graph == "complete":
        return [*combinations(range(ranks), 2)]
    if graph == "random":
        drawn = (np.random.PCG64([seed, cycle]).random_raw(ranks) for cycle in range(2))
        orders = [np.argsort(numbers, kind="stable").tolist() for numbers in drawn]
        return [(order[place - 1], order[place]) for order in orders for place in range(ranks)]
    distances = [1] if graph == "ring" else _distances(ranks)
    return [(rank, (rank + distance) % ranks) for distance in distances for rank in range(ranks)]


def neighbours(graph: str, ranks: int, seed: int = 0) -> Links:
    """Return each rank's neighbours in an undirected, connected graph.

    ``"ring"``; ``"torus"``, of two dimensions; ``"exponential"``, linked at the distances 1, 2, 4, ...;
    ``"complete"``; ``"random"``, two random cycles drawn by ``seed``: nearly every such graph is an expander
    (Friedman 2008).
    """
    links = _links(graph, ranks, seed)
    return _by_rank([*links, *(link[::-1] for link in links)], ranks)


def metropolis(links: Sequence[Collection[int]], rank: int) -> dict[int, float]:
    """Return ``rank``'s row of a mixing matrix: the weights of its parameters and its neighbours'.

    W[i, j] = 1 / (1 + max(degree i, degree j)); the diagonal completes each row to 1 (Xiao & Boyd 2004). W is
    symmetric and doubly stochastic on any graph: 1/3 on a ring, 1/p on the complete graph.
    """
    weights = {other: 1 / (1 + max(len(links[rank]), len(links[other]))) for other in links[rank]}
    return {rank: 1 - sum(weights.values()), **weights}


def parities(links: Sequence[Collection[int]]) -> list[int]:
    """Return the parity of each rank's distance from rank 0.

    Every rank but rank 0 has a neighbour of the other parity, one link nearer to rank 0. Therefore the links
    between ranks of different parity connect all ranks of a connected graph.
    """
    parity, queue = {0: 0}, [0]
    for rank in queue:  # it grows meanwhile
        for other in links[rank]:
            if other not in parity:
                parity[other] = 1 - parity[rank]
                queue.append(other)
    return [parity[rank] for rank in range(len(links))]


def pushes(graph: str, ranks: int, step: int, seed: int = 0) -> Links:
    """Return the targets of each rank's pushes at ``step``.

    ``"ring"``: the next rank. ``"torus"``: the next rank in the row and in the column. ``"exponential"``: one
    rank, at the distance 1, 2, 4, ... in turn (Assran et al. 2019, appendix A). ``"complete"``: all other ranks.
    ``"random"``: the next rank of a random cycle, drawn for each step, and a second one for half of the ranks.
    """
    if ranks > 1 and graph == "random":
        drawn = np.random.PCG64([seed, step]).random_raw(2 * ranks)
        order = np.argsort(drawn[:ranks], kind="stable").tolist()
        links = [*zip(order, [*order[1:], order[0]], strict=True)]
        links += [
            (rank, (rank + 1 + bits // 2 % (ranks - 1)) % ranks)
            for rank, bits in enumerate(drawn[ranks:].tolist())
            if bits % 2
        ]
    elif ranks > 1 and graph == "exponential":
        distance = _distances(ranks)[step % len(_distances(ranks))]
        links = [(rank, (rank + distance) % ranks) for rank in range(ranks)]
    else:
        links = [*permutations(range(ranks), 2)] if graph == "complete" else _links(graph, ranks, seed)
    return _by_rank(links, ranks)


def _by_rank(links: Iterable[tuple[int, int]], ranks: int) -> Links:
    targets: list[set[int]] = [set() for _ in range(ranks)]
    for rank, other in links:
        targets[rank].add(other)
    return [tuple(sorted(others - {rank})) for rank, others in enumerate(targets)]


def _distances(ranks: int) -> list[int]:
    """Return the powers of two below ``ranks``: 1, 2, 4, ..."""
    return [1 << power for power in range((ranks - 1).bit_length())]
