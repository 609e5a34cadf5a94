"""What a library's collectives compute and what they cost, where all ranks are coroutines of one process."""

from __future__ import annotations

from itertools import accumulate, pairwise
from math import ceil, log2
from typing import TYPE_CHECKING, Final

from hpcdl.fabric.apart import Apart, ends

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.fabric.comm import Array
    from hpcdl.fabric.network import Network

SUMS: Final = ("allreduce", "nonblocking allreduce", "persistent allreduce", "reduce_scatter allgather")
"""Those that sum on all ranks."""

BY_PARTS: Final = ("reduce_scatter", "allgather", "all_to_all")
"""Those in which each rank has a part of the vector."""

COLLECTIVES: Final = ("barrier", *SUMS, "broadcast", "reduce", *BY_PARTS)
"""All that :meth:`hpcdl.fabric.comm.Comm.native` knows."""


def collectively(collective: str, vectors: Sequence[Array | Apart], counts: Sequence[int]) -> None:
    """Do to the ranks' vectors, which are all equally long, what ``collective`` does."""
    if collective == "barrier":
        return
    buffers = []
    for operand, result in map(ends, vectors):
        if operand is not None:
            result[...] = operand
        buffers.append(result)
    if collective in SUMS:
        total = sum(buffers)
        for buffer in buffers:
            buffer[...] = total
    elif collective == "reduce":
        buffers[0][...] = sum(buffers)
    elif collective == "broadcast":
        for buffer in buffers[1:]:
            buffer[...] = buffers[0]
    else:
        _by_parts(collective, buffers, [slice(*ends) for ends in pairwise(accumulate(counts, initial=0))])


def _by_parts(collective: str, buffers: Sequence[Array], parts: Sequence[slice]) -> None:
    before = [buffer.copy() for buffer in buffers]
    for rank, buffer in enumerate(buffers):
        if collective == "reduce_scatter":
            buffer[parts[rank]] = sum(given[parts[rank]] for given in before)
        else:
            for source, part in enumerate(parts):
                buffer[part] = before[source][part if collective == "allgather" else parts[rank]]


def seconds(collective: str, ranks: int, size: int, network: Network) -> float:
    """How long a good library takes: the best of what Thakur, Rabenseifner & Gropp 2005 choose from.

    For ``size`` bytes, the whole vector. Between hosts only. Splitting takes no time: programs do it once, and
    what is asked for is how long they take after that.
    """
    if collective == "split":
        return 0.0
    steps, share = ceil(log2(ranks)), (ranks - 1) / ranks * size
    alpha, beta, gamma = network.link.alpha, network.link.beta, network.gamma
    halving = steps * alpha + share * (beta + gamma)
    doubling = steps * alpha + share * beta
    choices = {
        "barrier": [steps * alpha],
        "reduce_scatter": [halving],
        "allgather": [doubling],
        "reduce_scatter allgather": [halving + doubling],
        "broadcast": [steps * (alpha + size * beta), 2 * doubling],
        "reduce": [steps * (alpha + size * (beta + gamma)), halving + doubling],
        "all_to_all": [steps * (alpha + size / 2 * beta), (ranks - 1) * alpha + share * beta],
    }
    return min(choices.get(collective, [steps * (alpha + size * (beta + gamma)), halving + doubling]))
