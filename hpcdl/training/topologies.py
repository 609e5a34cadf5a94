"""Who exchanges with whom: graphs for gossip, their mixing weights, and schedules of directed pushes."""

from __future__ import annotations

from math import isqrt
from typing import TYPE_CHECKING, Final

import numpy as np

from hpcdl.registry import nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

Links = list[tuple[int, ...]]
"""For each rank the others that it is linked to, in order."""


def _ring(ranks: int, _seed: int) -> Iterator[tuple[int, int]]:
    yield from ((rank, (rank + 1) % ranks) for rank in range(ranks))


def _torus(ranks: int, _seed: int) -> Iterator[tuple[int, int]]:
    """As square as the number of ranks allows; a ring where that is a prime."""
    rows = next(height for height in range(isqrt(ranks), 0, -1) if ranks % height == 0)
    columns = ranks // rows
    for rank in range(ranks):
        row, column = divmod(rank, columns)
        yield rank, row * columns + (column + 1) % columns
        yield rank, (row + 1) % rows * columns + column


def _exponential(ranks: int, _seed: int) -> Iterator[tuple[int, int]]:
    for distance in _distances(ranks):
        yield from ((rank, (rank + distance) % ranks) for rank in range(ranks))


def _complete(ranks: int, _seed: int) -> Iterator[tuple[int, int]]:
    yield from ((rank, other) for rank in range(ranks) for other in range(rank))


def _random(ranks: int, seed: int) -> Iterator[tuple[int, int]]:
    """Two random cycles through all ranks."""
    for cycle in range(2):
        order = np.argsort(np.random.PCG64([seed, cycle]).random_raw(ranks), kind="stable")
        yield from ((int(order[place - 1]), int(order[place])) for place in range(ranks))


_GRAPHS: Final[dict[str, Callable[[int, int], Iterator[tuple[int, int]]]]] = {
    "ring": _ring,
    "torus": _torus,
    "exponential": _exponential,
    "complete": _complete,
    "random": _random,
}

GRAPHS: Final = tuple(_GRAPHS)


def check_graph(graph: str) -> None:
    """Raise ValueError, in one line, for a graph that is not one of :data:`GRAPHS`."""
    if graph not in GRAPHS:
        raise ValueError(f"graph: unknown {graph!r}{nearest(graph, GRAPHS)}")


def neighbours(graph: str, ranks: int, seed: int = 0) -> Links:
    """Return each rank's neighbours in an undirected, connected graph.

    ``"ring"``; ``"torus"``, of two dimensions; ``"exponential"``, linked at the distances 1, 2, 4, ...;
    ``"complete"``; ``"random"``, two cycles through all ranks in an order that ``seed`` gives: nearly every such
    graph expands well (Friedman 2008). ValueError: another graph.
    """
    check_graph(graph)
    linked: list[set[int]] = [set() for _ in range(ranks)]
    for one, other in _GRAPHS[graph](ranks, seed):
        linked[one].add(other)
        linked[other].add(one)
    return [tuple(sorted(others - {rank})) for rank, others in enumerate(linked)]


def metropolis(links: Sequence[Collection[int]], rank: int) -> dict[int, float]:
    """Return ``rank``'s row of a mixing matrix: the weights of its own parameters and of its neighbours'.

    W[i, j] = 1 / (1 + max(degree i, degree j)), and what is left to 1 on the diagonal (Xiao & Boyd 2004):
    symmetric and doubly stochastic on any graph. Thirds on a ring, 1 / p on a complete graph.
    """
    weights = {other: 1 / (1 + max(len(links[rank]), len(links[other]))) for other in links[rank]}
    return {rank: 1 - sum(weights.values()), **weights}


def colours(links: Sequence[Collection[int]]) -> list[int]:
    """Colour each rank 0 or 1, by the parity of its distance from rank 0.

    Every rank but rank 0 has a neighbour of the other colour, one step nearer, and a way to rank 0 whose colours
    alternate: the links between the colours connect whatever the graph connects, whether or not it is bipartite.
    """
    found, front, colour = {0}, [0], [0] * len(links)
    while front:
        rank = front.pop(0)
        for other in links[rank]:
            if other not in found:
                found.add(other)
                front.append(other)
                colour[other] = 1 - colour[rank]
    return colour


def pushes(graph: str, ranks: int, step: int, seed: int = 0) -> Links:
    """To whom each rank pushes at ``step``.

    ``"ring"``: to the next rank. ``"torus"``: to the next one in the row and in the column. ``"exponential"``: to
    one peer, at the distance 1, 2, 4, ... in turn (Assran et al. 2019, appendix A). ``"complete"``: to all others.
    ``"random"``: along a cycle through all ranks, drawn anew for each step, and half of the ranks to one more,
    so that some get more than others. ValueError: another graph.
    """
    check_graph(graph)
    if ranks == 1:
        return [()]
    if graph == "torus":
        towards: list[set[int]] = [set() for _ in range(ranks)]
        for rank, other in _torus(ranks, seed):
            towards[rank].add(other)
        return [tuple(sorted(others - {rank})) for rank, others in enumerate(towards)]
    if graph == "complete":
        return [tuple(other for other in range(ranks) if other != rank) for rank in range(ranks)]
    if graph == "random":
        drawn = np.random.PCG64([seed, step]).random_raw(2 * ranks)
        order = np.argsort(drawn[:ranks], kind="stable").tolist()
        targets = [{following} for _, following in sorted(zip(order, [*order[1:], order[0]], strict=True))]
        for rank, bits in enumerate(drawn[ranks:].tolist()):
            if bits % 2:
                targets[rank].add((rank + 1 + bits // 2 % (ranks - 1)) % ranks)
        return [tuple(sorted(others)) for others in targets]
    distances = _distances(ranks) if graph == "exponential" else [1]
    distance = distances[step % len(distances)]
    return [((rank + distance) % ranks,) for rank in range(ranks)]


def _distances(ranks: int) -> list[int]:
    """1, 2, 4, ... below ``ranks``."""
    return [1 << power for power in range((ranks - 1).bit_length())]
