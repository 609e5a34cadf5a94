"""Record of a case's compression: bytes with and without it, and the time of its arithmetic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hpcdl.aggregation.parts.cost import cost, costs
from hpcdl.aggregation.ring import ring
from hpcdl.cases.spec.scheme import MAX_TRIED
from hpcdl.fabric.network import NETWORKS
from hpcdl.fabric.vectors import phantom
from hpcdl.fabric.virtual.simulated import simulated

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Comm
    from hpcdl.trace.recorder import Scalar
    from hpcdl.training.parts.compressed.compressed import Compressed
    from hpcdl.training.parts.compressed.plan import Plan
    from hpcdl.training.parts.journal import Journal


async def compression_fields(
    comm: Comm,
    compressed: Compressed | None,
    journal: Journal,
    sent_bytes: int,
    warmup: int,
    *,
    among_activations: bool = False,
) -> dict[str, Scalar]:
    """Return the record's fields of the compression; empty without one. Collective.

    ``sent_bytes``: sent by this rank in all steps. ``warmup``: first steps whose times are not counted.
    ``among_activations``: ranks send activations, too.
    """
    if compressed is None:
        return {}
    comm = await comm.survivors()
    sent = np.array([float(size) for size in (sent_bytes, compressed.saved_bytes, compressed.warmup_bytes)])
    await comm.native("allreduce", sent)
    if comm.rank:
        return {}  # rank 0's fields are recorded
    first = max(0, min(warmup + compressed.plan.settings.warmup_steps, journal.steps - 1))
    bits = compressed.messages.bits_per_entry() if compressed.messages else None
    return {
        "residual_bytes": compressed.memory_bytes,
        **(dict(zip(("bits_per_entry", "entropy_bits_per_entry"), bits, strict=True)) if bits else {}),
        "compression_ratio": _ratio_of_messages(*map(float, sent))
        if not compressed.exchanges
        else _ratio(compressed, comm.size, float(sent[0]), among_activations=among_activations),
        **{f"{label}_seconds": _seconds(journal, label, first) for label in ("encode", "decode")},
    }


def _ratio_of_messages(sent: float, saved: float, warmup: float) -> float | None:
    """Return bytes of dense messages by bytes sent, of all ranks, without those of the first steps."""
    counted = sent - warmup
    return (counted + saved) / counted if counted > 0 else None


def _ratio(compressed: Compressed, ranks: int, sent: float, *, among_activations: bool) -> float | None:
    """Return bytes of a dense ring by bytes sent, of all ranks; None if ranks send nothing.

    The bytes of a library's collectives are not counted, nor those of gradients ``among_activations``: their ratio
    is that of the vectors' lengths, and None for messages, which vary.
    """
    plan, warmup, dtype = compressed.plan, compressed.plan.settings.warmup_steps, np.dtype(compressed.dtype)
    counted = not (plan.aggregation.native or plan.aggregation.adaptive or among_activations)
    if not counted and plan.kind != "vectors":
        return None
    dense = others = 0.0
    if not counted:
        sent = 0.0
    for (start, stop), steps in compressed.exchanges.items():
        first, whole = min(steps, warmup), (stop - start) * dtype.itemsize
        if counted:
            others += first * _dense_bytes(plan, ranks, stop - start, dtype) if first else 0.0
            whole *= 2 * (ranks - 1)
        else:
            lengths = compressed.compressor.lengths(slice(start, stop)) if steps else []
            sent += (steps - first) * sum(size * np.dtype(kind).itemsize for size, kind in lengths)
        dense += (steps - first) * whole
    return dense / (sent - others) if sent > others and dense else None


def _dense_bytes(plan: Plan, ranks: int, size: int, dtype: np.dtype[Any]) -> float:
    """Return the bytes that all ranks send to sum ``size`` elements; by a ring if the scheme is sparse."""
    scheme, settings = (ring, {}) if plan.aggregation.sparse else (plan.scheme, plan.scheme_settings)
    if ranks <= MAX_TRIED:
        world = simulated(ranks, next(iter(NETWORKS.values())))
        world.run(lambda comm: scheme(comm, phantom(size, dtype), **settings))
        return float(sum(world.bytes))
    stated = costs(scheme, settings)
    if "Bytes, all ranks" in stated:
        return cost(stated["Bytes, all ranks"], ranks, size * dtype.itemsize)
    return ranks * cost(stated["Bytes, busiest rank"], ranks, size * dtype.itemsize)


def _seconds(journal: Journal, label: str, first: int) -> float | None:
    """Return the seconds per step of this rank in work with this label; None unless all of it was traced.

    Compressors are compiled in their first step, which is not counted, nor are the steps before it.
    """
    events = journal.events_from(first)
    if events is None:
        return None
    spent = sum(end - begin for _, of, begin, end, _, _ in events if of == label)
    return spent / 1e9 / (journal.steps - first)
