"""``kind = "collective"``: time a collective by a scheme at a size, and check what it computes.

With ``network`` it is simulated: size-only payloads, virtual time, any number of ranks in one process.
"""

from __future__ import annotations

from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hpcdl import registry
from hpcdl.analysis import cost
from hpcdl.fabric.comm import phantom
from hpcdl.fabric.network import NETWORKS
from hpcdl.fabric.simulated import simulated
from hpcdl.suite import Key, about, label, try_out

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from hpcdl.fabric.comm import Comm
    from hpcdl.suite import Scalar
    from hpcdl.training.journal import Journal

KEYS: Final[dict[str, Key]] = {
    "collective": Key((str,), "allreduce", choices=("allreduce",)),
    "aggregation": Key((str, dict), folder="aggregation"),
    "ranks": Key((int,), least=1),
    "message_bytes": Key((int,), least=0),
    "dtype": Key((str,), "float32", choices=("float32", "float64")),
    "repetitions": Key((int,), 50, least=1),
    "warmup": Key((int,), 5, least=0),
    "network": Key((str,), None, choices=tuple(NETWORKS)),
    "ranks_per_host": Key((int,), 1, least=1),
    "threads": Key((int,), 1, least=1),
    "trace": Key((str,), "steps", choices=("events", "steps")),
}


def check(settings: Mapping[str, Any]) -> None:
    """See :class:`hpcdl.suite.Kind`."""
    itemsize = np.dtype(settings["dtype"]).itemsize
    with about("message_bytes"):
        if settings["message_bytes"] % itemsize:
            raise ValueError(
                f"{settings['message_bytes']} is not a multiple of {settings['dtype']}'s {itemsize} bytes"
            )
    with about("aggregation"):
        if settings["aggregation"]["name"] == "none":
            raise ValueError("'none' exchanges nothing, so there is nothing to time")
        if settings["aggregation"]["name"] == "nccl":
            raise ValueError("nccl sums vectors on GPUs, which are a train case's with backend = 'cupy'")
        try_out(settings["aggregation"], settings["ranks"])


def memory_bytes(settings: Mapping[str, Any]) -> int:
    """See :class:`hpcdl.suite.Kind`: the vector and what it is compared with; nothing where it has no content."""
    return 0 if settings["network"] else 2 * int(settings["message_bytes"])


def identity(settings: Mapping[str, Any]) -> list[str]:
    """See :class:`hpcdl.suite.Kind`."""
    words = [settings["collective"], label(settings["aggregation"]), f"p{settings['ranks']}"]
    return [*words, f"{settings['message_bytes']}B"]


def fields(settings: Mapping[str, Any]) -> dict[str, Scalar]:
    """See :class:`hpcdl.suite.Kind`."""
    on = f"{settings['network']}, {settings['ranks_per_host']} a host" if settings["network"] else ""
    return {
        "collective": settings["collective"],
        "aggregation": label(settings["aggregation"]),
        "message_bytes": settings["message_bytes"],
        "dtype": settings["dtype"],
        "threads_per_rank": settings["threads"],
        "network": settings["network"],
        "configuration": f"simulated on {on}" if on else f"trace={settings['trace']}",
        "warmup_steps": 0 if on else settings["warmup"],
    }


def program(
    settings: Mapping[str, Any], journal: Journal
) -> Callable[[Comm], Coroutine[Any, Any, dict[str, Scalar]]]:
    """See :class:`hpcdl.suite.Kind`."""
    choice = settings["aggregation"]
    function = registry.find("aggregation", choice["name"])
    aggregate = partial(function, **{k: v for k, v in choice.items() if k != "name"})
    size = settings["message_bytes"] // np.dtype(settings["dtype"]).itemsize
    if settings["network"]:
        return partial(_simulate, settings, aggregate, size, journal)

    async def measure(comm: Comm) -> dict[str, Scalar]:
        # whole numbers: their sums are exact in any order, and the loop keeps them small
        pattern = (np.arange(size) % 17).astype(settings["dtype"])
        mine = pattern + comm.rank
        expected = pattern * comm.size + comm.size * (comm.size - 1) // 2
        buffer = np.empty_like(mine)
        wrong = np.zeros(1)
        spans = []
        before = journal.read()
        for _ in range(settings["warmup"] + settings["repetitions"]):
            buffer[:] = mine
            await comm.native("barrier", buffer)
            begin = journal.read().time_ns
            await aggregate(comm, buffer)
            spans.append((begin, journal.read().time_ns))
            wrong += not np.array_equal(buffer, expected)
        after = journal.read()
        journal.repetitions(
            spans,
            (after.messages - before.messages) // len(spans),
            (after.bytes - before.bytes) // len(spans),
        )
        await comm.native("allreduce", wrong)
        return {"correct": not wrong[0]}

    return measure


async def _simulate(
    settings: Mapping[str, Any],
    aggregate: partial[Coroutine[Any, Any, None]],
    size: int,
    journal: Journal,
    _comm: Comm,
) -> dict[str, Scalar]:
    network = NETWORKS[settings["network"]].on(settings["ranks_per_host"])
    payload = phantom(size, settings["dtype"])
    world = simulated(settings["ranks"], network)
    began = perf_counter()
    world.run(lambda comm: aggregate(comm, payload))
    took = perf_counter() - began
    journal.repetitions([(0, round(world.now * 1e9))], max(world.messages), max(world.bytes))
    link = network.link
    stated = cost.time(
        aggregate.func,
        settings["ranks"],
        payload.nbytes,
        link.alpha,
        link.beta,
        network.gamma,
        aggregate.keywords,
    )
    return {"simulation_seconds": took, "predicted_seconds": stated}
