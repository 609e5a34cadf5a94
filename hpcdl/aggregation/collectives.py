"""Which scheme offers which collective, and how its vector is laid out.

Every rank has a vector of the whole size, as in nccl-tests. ``allreduce``: all end with the sum; ``reduce``: rank
0 does, and the others' vectors end with parts of it; ``broadcast``: all end with rank 0's. In the others rank r's
part is the r-th of :func:`hpcdl.fabric.comm.partition`: after a ``reduce_scatter`` it is the part's sum, after an
``allgather`` everybody has everybody's; after an ``all_to_all`` part i is what rank i had for this rank, and all
parts are equally long.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from hpcdl import registry
from hpcdl.fabric.apart import Apart
from hpcdl.fabric.comm import Parts, partition

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from hpcdl.fabric.comm import Array

BY_PARTS: Final = ("reduce_scatter", "allgather", "all_to_all")
"""Called with the parts of the vector, the others with the vector."""

OF_A_LIBRARY: Final = (
    *("native", "native_nonblocking", "native_persistent", "native_reduce_scatter_allgather", "nccl"),
)
"""Schemes that are a library's calls, which may read one vector and write another."""

COLLECTIVES: Final = ("allreduce", *BY_PARTS, "broadcast", "reduce")


def offered(collective: str, scheme: str) -> Callable[..., Coroutine[Any, Any, None]]:
    """The ``collective`` of a scheme: the function of that name in its file, or of the file's name for allreduce.

    Raises ValueError for an unknown scheme and for one without it, naming those that have it.
    """
    allreduce = registry.find("aggregation", scheme)
    found = _offer(collective, allreduce)
    if found is None:
        raise ValueError(f"{scheme!r} has no {collective}; these have: {', '.join(schemes(collective))}")
    return found


def schemes(collective: str) -> list[str]:
    """The schemes that offer a collective, sorted."""
    return [
        name
        for name in registry.names("aggregation")
        if _offer(collective, registry.find("aggregation", name)) is not None
    ]


def _offer(collective: str, allreduce: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, None]] | None:
    if collective == "allreduce":
        return allreduce
    found = vars(sys.modules[allreduce.__module__]).get(collective)
    own = getattr(found, "__module__", None) == allreduce.__module__ and found is not allreduce
    return found if own else None


def operand(collective: str, buffer: Array, ranks: int) -> Array | Parts:
    """What the collective is called with: the vector, or its parts.

    Raises ValueError for an all-to-all of a vector that cannot be cut into equal parts.
    """
    if collective == "all_to_all" and len(buffer) % ranks:
        raise ValueError(f"{len(buffer)} elements make no {ranks} equal parts, which an all_to_all exchanges")
    return partition(buffer, ranks) if collective in BY_PARTS else buffer


def operands_apart(collective: str, operand: Array, result: Array, ranks: int) -> Array | Parts:
    """What a library's collective is called with out of place: see :class:`hpcdl.fabric.apart.Apart`."""
    both: Any = Apart(operand, result)  # only the fabric looks into it
    return Parts(both, partition(result, ranks)) if collective in BY_PARTS else both
