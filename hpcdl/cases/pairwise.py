"""``kind = "pairwise"``: ranks exchange messages two by two, through the fabric or past it.

``exchange`` says which: ``fabric`` is :meth:`Comm.exchange`, ``raw`` is mpi4py's Sendrecv with nothing in between.
Their difference is what the fabric costs. ``pattern`` says who with whom: ``pair`` is ranks 0 and 1, ``all_pairs``
every two ranks in rounds without conflict, ``bisection`` one half with the other, all at once.
"""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hpcdl.analysis.links import rounds
from hpcdl.launch.memory import node_memory_bytes, shortage
from hpcdl.suite import Key

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from hpcdl.fabric.comm import Comm
    from hpcdl.suite import Scalar
    from hpcdl.training.journal import Journal

CALLED: Final = {
    "pair": "exchange",
    "all_pairs": "exchange of all pairs",
    "bisection": "exchange between halves",
}
"""By pattern, what the report calls it."""

KEYS: Final[dict[str, Key]] = {
    "exchange": Key((str,), "fabric", choices=("fabric", "raw")),
    "message_bytes": Key((int,), least=0),
    "ranks": Key((int,), 2, least=2),
    "pattern": Key((str,), "pair", choices=tuple(CALLED)),
    "repetitions": Key((int,), 1000, least=1),
    "warmup": Key((int,), 100, least=0),
    "threads": Key((int,), 1, least=1),
    "trace": Key((str,), "steps", choices=("events", "steps")),
}


def check(settings: Mapping[str, Any]) -> None:
    """See :class:`hpcdl.suite.Kind`."""
    ranks, pattern = settings["ranks"], settings["pattern"]
    if pattern == "pair" and ranks != 2:
        raise ValueError(f"ranks: a pair has 2, not {ranks}; pattern = 'all_pairs' or 'bisection' takes more")
    if pattern == "bisection" and ranks % 2:
        raise ValueError(f"ranks: {ranks} ranks have no two equal halves")
    if (line := shortage(memory_bytes(settings), 1, node_memory_bytes())) is not None:
        raise ValueError(f"message_bytes: {settings['message_bytes']} to a rank: {line}")


def memory_bytes(settings: Mapping[str, Any]) -> int:
    """See :class:`hpcdl.suite.Kind`: one message goes, one comes, and which bytes of it are right."""
    return 3 * int(settings["message_bytes"])


def identity(settings: Mapping[str, Any]) -> list[str]:
    """See :class:`hpcdl.suite.Kind`."""
    words = [] if settings["pattern"] == "pair" else [settings["pattern"], f"p{settings['ranks']}"]
    return ["exchange", settings["exchange"], *words, f"{settings['message_bytes']}B"]


def fields(settings: Mapping[str, Any]) -> dict[str, Scalar]:
    """See :class:`hpcdl.suite.Kind`."""
    return {
        "collective": CALLED[settings["pattern"]],
        "pattern": settings["pattern"],
        "aggregation": settings["exchange"],
        "message_bytes": settings["message_bytes"],
        "dtype": "uint8",
        "threads_per_rank": settings["threads"],
        "configuration": f"trace={settings['trace']}",
        "warmup_steps": settings["warmup"] * len(rounds(settings["ranks"], settings["pattern"])),
    }


def program(
    settings: Mapping[str, Any], journal: Journal
) -> Callable[[Comm], Coroutine[Any, Any, dict[str, Scalar]]]:
    """See :class:`hpcdl.suite.Kind`."""
    size = settings["message_bytes"]

    async def measure(comm: Comm) -> dict[str, Scalar]:
        outgoing = np.full(size, comm.rank % 256, np.uint8)
        incoming = np.empty(size, np.uint8)
        sendrecv = comm.library.Sendrecv  # type: ignore[attr-defined] # MPI's alone
        raw = settings["exchange"] == "raw"
        correct, spans, messages = True, list[tuple[int, int]](), 0
        for repetitions in (settings["warmup"], settings["repetitions"]):
            for partners in rounds(comm.size, settings["pattern"]):
                peer = partners[comm.rank]
                await comm.native("barrier", outgoing)
                incoming[:] = comm.rank % 256
                for _ in range(repetitions):
                    begin = perf_counter_ns()
                    if peer is None:
                        pass  # a rank that rests has steps of no length, so that all ranks count alike
                    elif raw:
                        sendrecv(outgoing, peer, 0, incoming, peer, 0)
                    else:
                        await comm.exchange(outgoing, peer, incoming, peer)
                    spans.append((begin, perf_counter_ns()))
                if peer is not None and repetitions:
                    messages = 1
                    correct &= bool((incoming == peer % 256).all())
        journal.repetitions(spans, messages, size * messages)
        wrong = np.array([not correct], np.float64)
        await comm.native("allreduce", wrong)
        return {"correct": not wrong[0]}

    return measure
