"""Bandwidth of a collective as nccl-tests defines it (its doc/PERFORMANCE.md)."""

from __future__ import annotations


def bus_factor(collective: str, ranks: int) -> float | None:
    """Return the factor from algorithm bandwidth S/t to the bandwidth of the busiest link.

    S is the whole array: that of a rank after an allgather, before a reduce-scatter or an all-to-all.
    allreduce 2(p-1)/p; reduce_scatter, allgather, all_to_all (p-1)/p; broadcast, reduce, pairwise exchange 1.
    None for a collective that has no such factor. ``ranks`` >= 1.
    """
    share = (ranks - 1) / ranks
    return {
        "allreduce": 2 * share,
        "reduce_scatter": share,
        "allgather": share,
        "all_to_all": share,
        "broadcast": 1.0,
        "reduce": 1.0,
        "exchange": 1.0,
        "pairwise": 1.0,
    }.get(collective)
