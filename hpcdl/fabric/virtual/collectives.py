"""Results and costs of a library's collectives, for ranks that are coroutines of one process."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import ceil, log2
from typing import Final

from hpcdl.fabric.comm import Array
from hpcdl.fabric.network import Network
from hpcdl.fabric.vectors import OutOfPlace, operand_and_result

SUMS: Final = ("allreduce", "nonblocking allreduce", "persistent allreduce", "reduce_scatter allgather")
"""Those that sum on all ranks."""

BY_PARTS: Final = ("reduce_scatter", "allgather", "all_to_all")
"""Those in which each rank has a part of the vector."""

COLLECTIVES: Final = ("barrier", *SUMS, "broadcast", "reduce", *BY_PARTS)
"""All that :meth:`hpcdl.fabric.comm.Comm.native` knows."""


def collectively(collective: str, vectors: Sequence[Array | OutOfPlace], counts: Sequence[int]) -> None:
    """Run ``collective`` on the ranks' vectors, which are equally long."""
    if collective == "barrier":
        return
    buffers = []
    for operand, result in map(operand_and_result, vectors):
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
        parts = [slice(begin, end) for begin, end in pairwise(accumulate(counts, initial=0))]
        before = [buffer.copy() for buffer in buffers]
        for buffer, mine in zip(buffers, parts, strict=True):
            if collective == "reduce_scatter":
                buffer[mine] = sum(given[mine] for given in before)
            else:
                for given, part in zip(before, parts, strict=True):
                    buffer[part] = given[part if collective == "allgather" else mine]


def seconds(collective: str, ranks: int, size: int, network: Network) -> float:
    """Return the time (s) of a good library: the best algorithm of Thakur, Rabenseifner & Gropp 2005.

    ``size`` is in bytes, of the whole vector; all ranks are on different hosts. A split takes no time, because
    programs do it once, before the part of their time that is predicted.
    """
    if collective == "split":
        return 0.0
    steps, share = ceil(log2(ranks)), (ranks - 1) / ranks * size
    link, gamma = network.link, network.gamma
    early = sum(link.early(size / 2**step) for step in range(1, steps + 1))
    doubling = steps * link.alpha + share * link.beta + early
    halving = doubling + share * gamma
    choices = {
        "barrier": [steps * link.alpha],
        "reduce_scatter": [halving],
        "allgather": [doubling],
        "reduce_scatter allgather": [halving + doubling],
        "broadcast": [steps * link.seconds(size), 2 * doubling],
        "reduce": [steps * (link.seconds(size) + size * gamma), halving + doubling],
        "all_to_all": [steps * link.seconds(size / 2), (ranks - 1) * link.seconds(size / ranks)],
    }
    return min(choices.get(collective, [steps * (link.seconds(size) + size * gamma), halving + doubling]))
