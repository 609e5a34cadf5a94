"""``kind = "pairwise"``: two ranks exchange messages, through the fabric or past it.

``aggregation`` says which: ``fabric`` is :meth:`Comm.exchange`, ``raw`` is mpi4py's Sendrecv with nothing in
between. Their difference is what the fabric costs.
"""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hpcdl.suite import Key

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from hpcdl.fabric.comm import Comm
    from hpcdl.suite import Scalar
    from hpcdl.training.journal import Journal

KEYS: Final[dict[str, Key]] = {
    "exchange": Key((str,), "fabric", choices=("fabric", "raw")),
    "message_bytes": Key((int,), least=0),
    "ranks": Key((int,), 2, least=2),
    "repetitions": Key((int,), 1000, least=1),
    "warmup": Key((int,), 100, least=0),
    "threads": Key((int,), 1, least=1),
    "trace": Key((str,), "steps", choices=("events", "steps")),
}


def check(settings: Mapping[str, Any]) -> None:
    """See :class:`hpcdl.suite.Kind`."""
    if settings["ranks"] != 2:
        raise ValueError(f"ranks: a pairwise case has 2, not {settings['ranks']}")


def memory_bytes(settings: Mapping[str, Any]) -> int:
    """See :class:`hpcdl.suite.Kind`: one message goes and one comes."""
    return 2 * int(settings["message_bytes"])


def identity(settings: Mapping[str, Any]) -> list[str]:
    """See :class:`hpcdl.suite.Kind`."""
    return ["exchange", settings["exchange"], f"{settings['message_bytes']}B"]


def fields(settings: Mapping[str, Any]) -> dict[str, Scalar]:
    """See :class:`hpcdl.suite.Kind`."""
    return {
        "collective": "exchange",
        "aggregation": settings["exchange"],
        "message_bytes": settings["message_bytes"],
        "dtype": "uint8",
        "threads_per_rank": settings["threads"],
        "configuration": f"trace={settings['trace']}",
        "warmup_steps": settings["warmup"],
    }


def program(
    settings: Mapping[str, Any], journal: Journal
) -> Callable[[Comm], Coroutine[Any, Any, dict[str, Scalar]]]:
    """See :class:`hpcdl.suite.Kind`."""
    size = settings["message_bytes"]

    async def measure(comm: Comm) -> dict[str, Scalar]:
        peer = 1 - comm.rank
        outgoing = np.full(size, comm.rank, np.uint8)
        incoming = np.full(size, comm.rank, np.uint8)
        sendrecv = comm.library.Sendrecv  # type: ignore[attr-defined] # MPI's alone
        raw = settings["exchange"] == "raw"
        await comm.native("barrier", incoming)
        spans = []
        for _ in range(settings["warmup"] + settings["repetitions"]):
            begin = perf_counter_ns()
            if raw:
                sendrecv(outgoing, peer, 0, incoming, peer, 0)
            else:
                await comm.exchange(outgoing, peer, incoming, peer)
            spans.append((begin, perf_counter_ns()))
        journal.repetitions(spans, 1, size)
        return {"correct": bool((incoming == peer).all())}

    return measure
