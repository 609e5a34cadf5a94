"""``kind = "collective"``: time a collective by a scheme at a size, and check what it computes.

With ``network`` it is simulated: size-only payloads, virtual time, any number of ranks in one process.
"""

from __future__ import annotations

import math
from functools import cache, partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hpcdl import registry
from hpcdl.aggregation.collectives import COLLECTIVES, OF_A_LIBRARY, offered, operand, operands_apart
from hpcdl.analysis import cost
from hpcdl.analysis.scratch import scratch_bytes
from hpcdl.assembly import architecture, check_place
from hpcdl.fabric.network import NETWORKS
from hpcdl.fabric.phantom import phantom
from hpcdl.fabric.simulated import simulated
from hpcdl.launch.memory import node_memory_bytes, shortage
from hpcdl.measuring.contents import ALIKE, Contents, alike, reals
from hpcdl.measuring.starts import STARTS, start
from hpcdl.measuring.tuning import foretold, tune
from hpcdl.nn.backend import backend
from hpcdl.suite import Key, about, can_be_tried, label

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from hpcdl.fabric.comm import Comm
    from hpcdl.suite import Scalar
    from hpcdl.training.journal import Journal

KEYS: Final[dict[str, Key]] = {
    "collective": Key((str,), "allreduce", choices=COLLECTIVES),
    "aggregation": Key((str, dict), folder="aggregation"),
    "ranks": Key((int,), least=1),
    "message_bytes": Key((int, str)),
    "dtype": Key((str,), "float32", choices=("float32", "float64")),
    "backend": Key((str, dict), {"name": "numpy"}, folder="backends"),
    "repetitions": Key((int,), 50, least=1),
    "warmup": Key((int,), 5, least=0),
    "start": Key((str,), "barrier", choices=STARTS),
    "placement": Key((str,), "in_place", choices=("in_place", "out_of_place")),
    "network": Key((str,), None, choices=tuple(NETWORKS)),
    "ranks_per_host": Key((int,), 1, least=1),
    "threads": Key((int,), 1, least=1),
    "trace": Key((str,), "steps", choices=("events", "steps")),
}


SEGMENT_BYTES: Final = 65536
"""Of schemes that cut vectors, as they are by default."""
SEGMENTS: Final = 16
"""To a vector on which a scheme is tried: enough that a segment's inbox is little beside it."""

MEASURED: Final = ("backend", "start", "placement", "threads")
"""Keys that say nothing of a simulated case."""


def check(settings: Mapping[str, Any]) -> None:
    """See :class:`hpcdl.suite.Kind`."""
    for key in MEASURED if settings["network"] else ():
        if settings[key] != KEYS[key].default:
            raise ValueError(
                f"{key}: goes with measured cases, and network = {settings['network']!r} simulates this one"
            )
    with about("message_bytes"):
        _check_size(settings)
    name = settings["aggregation"]["name"]
    with about("backend"):
        chosen = backend(**settings["backend"])
    with about("aggregation"):
        if name == "none":
            raise ValueError("'none' exchanges nothing, so there is nothing to time")
        check_place(name, chosen, settings)
        run = _scheme(settings)
        registry.check_settings(run.func, run.keywords)
        needed = memory_bytes(settings)  # tries the scheme
    with about("message_bytes"):
        if (line := shortage(needed, 1, node_memory_bytes())) is not None:
            raise ValueError(f"{_bytes(settings)} on a rank: {line}")


def _check_size(settings: Mapping[str, Any]) -> None:
    given, itemsize = settings["message_bytes"], _itemsize(settings)
    if isinstance(given, str):
        parameters(given)
    elif given < 0:
        raise ValueError(f"must be at least 0, not {given}")
    elif given % itemsize:
        raise ValueError(f"{given} is not a multiple of {settings['dtype']}'s {itemsize} bytes")
    operand(settings["collective"], phantom(length(settings), settings["dtype"]), settings["ranks"])


@cache
def parameters(model: str) -> int:
    """How many numbers the gradient of a model has, for images of the size it is made for. Raises ValueError."""
    from hpcdl.analysis.volumes import volumes

    shape, layers = architecture({"name": model}, None)
    return volumes(layers, shape, 1).parameters


def length(settings: Mapping[str, Any]) -> int:
    """Elements of the vector."""
    given = settings["message_bytes"]
    return parameters(given) if isinstance(given, str) else int(given) // _itemsize(settings)


def _bytes(settings: Mapping[str, Any]) -> int:
    return length(settings) * _itemsize(settings)


def _itemsize(settings: Mapping[str, Any]) -> int:
    return int(np.dtype(settings["dtype"]).itemsize)


def _scheme(settings: Mapping[str, Any]) -> partial[Coroutine[Any, Any, None]]:
    """The collective with its settings bound. Raises ValueError if the scheme does not have it."""
    choice = settings["aggregation"]
    function = offered(settings["collective"], choice["name"])
    return partial(function, **{key: value for key, value in choice.items() if key != "name"})


def memory_bytes(settings: Mapping[str, Any]) -> int:
    """See :class:`hpcdl.suite.Kind`: the vector, what it was and must become, and what its scheme borrows.

    Where bits are compared random numbers come in the place of the last two, made in float64, and a library that
    writes another vector than it reads has both. Nothing where vectors have no content. Raises ValueError where
    the scheme does, if it can be tried.
    """
    size, borrowed = _bytes(settings), _borrowed(settings)
    if settings["network"]:
        return 0
    apart = settings["placement"] == "out_of_place" and settings["aggregation"]["name"] in OF_A_LIBRARY
    drawn = 2 + apart + 8 // _itemsize(settings) if settings["collective"] in ALIKE else 0
    return math.ceil(size * (max(3, drawn) + borrowed))


def _borrowed(settings: Mapping[str, Any]) -> float:
    """Vectors that the scheme borrows, the mean over ranks; long ones are taken to be like one of some segments.

    0 for a scheme that cannot be tried. Raises ValueError where the scheme does.
    """
    ranks, scheme = int(settings["ranks"]), _scheme(settings)
    if not can_be_tried(settings["aggregation"]["name"], ranks):
        return 0.0
    segment: int = registry.in_full(scheme.func, scheme.keywords).get("segment_bytes", SEGMENT_BYTES)
    most = SEGMENTS * max(1, segment // _itemsize(settings))
    size = ranks * max(1, min(length(settings), most) // ranks)
    payload = operand(settings["collective"], phantom(size, settings["dtype"]), ranks)
    return scratch_bytes(lambda comm: scheme(comm, payload), ranks) / (ranks * size * _itemsize(settings))


def identity(settings: Mapping[str, Any]) -> list[str]:
    """See :class:`hpcdl.suite.Kind`."""
    size = settings["message_bytes"]
    words = [settings["collective"], label(settings["aggregation"]), f"p{settings['ranks']}"]
    return [*words, size if isinstance(size, str) else f"{size}B"]


def fields(settings: Mapping[str, Any]) -> dict[str, Scalar]:
    """See :class:`hpcdl.suite.Kind`."""
    size = settings["message_bytes"]
    on = f"{settings['network']}, {settings['ranks_per_host']} a host" if settings["network"] else ""
    told = [f"simulated on {on}" if on else f"trace={settings['trace']}"]
    unusual = [key for key in ("start", "placement", "backend") if settings[key] != KEYS[key].default]
    return {
        "collective": settings["collective"],
        "aggregation": label(settings["aggregation"]),
        "message_bytes": _bytes(settings),
        "model": size if isinstance(size, str) else None,
        "dtype": settings["dtype"],
        "backend": None if on else label(settings["backend"]),
        "threads_per_rank": settings["threads"],
        "network": settings["network"],
        **({"ranks_per_host": settings["ranks_per_host"]} if on else {}),
        "start": None if on else settings["start"],
        "placement": None if on else settings["placement"],
        "configuration": ", ".join(told + [f"{key}={label(settings[key])}" for key in unusual]),
        "warmup_steps": 0 if on else settings["warmup"],
    }


def program(
    settings: Mapping[str, Any], journal: Journal
) -> Callable[[Comm], Coroutine[Any, Any, dict[str, Scalar]]]:
    """See :class:`hpcdl.suite.Kind`."""
    return partial(_simulate if settings["network"] else _measure, settings, journal)


async def _measure(settings: Mapping[str, Any], journal: Journal, comm: Comm) -> dict[str, Scalar]:
    collective, size, dtype = settings["collective"], length(settings), settings["dtype"]
    place = backend(**settings["backend"])
    scheme, chosen = await _chosen(settings, journal, comm)
    contents = Contents(collective, comm, size, dtype)
    # in the host's memory other ranks of the host can map it, which a scheme may make use of
    buffer = comm.memory.allocate(size, dtype) if place.on_host else place.zeros(size, dtype)
    operands = place.asarray(contents.before)
    out_of_place = settings["placement"] == "out_of_place"
    apart = out_of_place and (chosen or settings["aggregation"]["name"]) in OF_A_LIBRARY
    copied = out_of_place and not apart
    given = operand(collective, buffer, comm.size)
    if apart:
        given = operands_apart(collective, operands, buffer, comm.size)
    beginning = start(settings["start"], comm, lambda: journal.read().time_ns)
    wrong, arrived = np.zeros(1), np.zeros(1)
    spans = []
    before = journal.read()
    for _ in range(settings["warmup"] + settings["repetitions"]):
        buffer[:] = 0 if out_of_place else operands
        place.to_host(buffer[:1])  # waits for the device
        begin = await beginning.ready()
        if copied:
            buffer[:] = operands
        await scheme(comm, given)
        place.to_host(buffer[:1])
        spans.append((begin, journal.read().time_ns))
        # looking what came out, or spinning in a barrier, would keep cores busy that late ranks may need
        await comm.native("nonblocking allreduce", arrived)
        wrong += not contents.right(place.to_host(buffer))
    after = journal.read()
    messages, sent = after.messages - before.messages, after.bytes - before.bytes
    journal.repetitions(spans, messages // len(spans), sent // len(spans))
    told = await beginning.told(settings["warmup"])
    if out_of_place:
        told["copied"] = copied or collective == "broadcast"  # of which MPI has none with two vectors
    sent_from = operands if apart else buffer
    del contents, operands  # what follows needs as much
    if collective in ALIKE:
        sent_from[:] = place.asarray(reals(comm.rank, size, dtype))
        await scheme(comm, given)
        told["same_bits"] = await alike(comm, place.to_host(buffer))
    await comm.native("allreduce", wrong)
    return {"correct": not wrong[0], "chosen": chosen, **told}


async def _chosen(
    settings: Mapping[str, Any], journal: Journal, comm: Comm
) -> tuple[Callable[..., Coroutine[Any, Any, None]], str | None]:
    """The scheme, and its name if it was chosen here."""
    if settings["aggregation"]["name"] != "auto":
        return _scheme(settings), None
    size = _bytes(settings)
    choices = await tune(comm, [size], lambda: journal.read().time_ns, dtype=settings["dtype"])
    return choices[size], choices.name(size)


async def _simulate(settings: Mapping[str, Any], journal: Journal, _comm: Comm) -> dict[str, Scalar]:
    network = NETWORKS[settings["network"]].on(settings["ranks_per_host"])
    vector, ranks = phantom(length(settings), settings["dtype"]), settings["ranks"]
    payload: Any = operand(settings["collective"], vector, ranks)
    scheme, chosen = _scheme(settings), None
    if settings["aggregation"]["name"] == "auto":
        choices = foretold(ranks, network, [vector.nbytes], settings["dtype"])
        scheme, chosen = partial(choices[vector.nbytes]), choices.name(vector.nbytes)
    world = simulated(ranks, network)
    began = perf_counter()
    world.run(lambda comm: scheme(comm, payload))
    took = perf_counter() - began
    journal.repetitions([(0, round(world.now * 1e9))], max(world.messages), max(world.bytes))
    stated = None
    if (link := network.common_link(ranks)) is not None:  # formulas know one link
        prices = (link.alpha, link.beta, network.gamma)
        stated = cost.time(scheme.func, ranks, vector.nbytes, *prices, scheme.keywords)
    return {"simulation_seconds": took, "predicted_seconds": stated, "chosen": chosen}
