"""Traits of a scheme, which its module declares, and its collectives, which its module defines.

In a collective every rank has a vector of the whole size, as in nccl-tests. ``allreduce``: all ranks end with the
sum. ``reduce``: rank 0 does; the others end with partial sums. ``broadcast``: all end with rank 0's vector. The
other collectives use the parts of :func:`hpcdl.fabric.vectors.partition`. ``reduce_scatter``: rank r ends with
the sum of part r. ``allgather``: all ranks end with part r of each rank r. ``all_to_all``: part i comes from rank
i; all parts are equally long. ``alltoallv``: block i, of any length, comes from rank i, in another vector.
"""

import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Literal, cast

from hpcdl import registry
from hpcdl.fabric.comm import Array, Comm
from hpcdl.fabric.task import Program
from hpcdl.fabric.vectors import Blocks, OutOfPlace, Parts, partition
from hpcdl.registry import Offer, Settings


@dataclass(frozen=True, kw_only=True)
class Aggregation:
    """Traits of an aggregation scheme. A module that declares none has the defaults."""

    memory: Literal["any", "host", "device"] = "any"
    """Memory in which the scheme sums."""
    one_host: bool = False
    """All ranks must be on one host."""
    sums: bool = True
    """False: ranks exchange nothing, and replicas are independent."""
    native: bool = False
    """Calls a library's collective, which chooses the messages. The vector may be an ``OutOfPlace``: operand and
    result."""
    adaptive: bool = False
    """Chooses among other schemes by size; takes ``choices``, the scheme of each size in bytes."""
    composite: bool = False
    """Consists of other schemes, and cannot be a component of another one."""
    parts: tuple[str, ...] = ()
    """Settings of a composite scheme that name its components."""
    shares_ports: bool = False
    """Several messages of a port are under way at once. A simulated port carries one after the other. Therefore no
    network is fitted to the times of such a scheme."""
    autotuned: bool = True
    """A candidate of ``auto``, with its default settings."""
    sparse: bool = False
    """Sums entries that a compressor selects; called as described in :mod:`hpcdl.aggregation.parts.entries`."""
    gathers: bool = False
    """Its module's ``gather`` gives all ranks the messages of all: see
    :mod:`hpcdl.aggregation.parts.messages`."""
    servers: Callable[[int, Settings], int] | None = None
    """``servers(ranks, settings)``: number of ranks that sum a shard each, and can decode and encode messages."""


def part_traits(key: str, name: str) -> Aggregation:
    """Return the traits of the scheme that the setting ``key`` names.

    Raises ValueError if it cannot be a component of a composite scheme.
    """
    try:
        traits = registry.traits("aggregation", name, Aggregation)
    except ValueError as error:
        raise ValueError(f"{key} = {name!r}: {error}") from None
    if not traits.sums:
        raise ValueError(f"{key} = {name!r}: this scheme sums nothing")
    if traits.sparse:
        raise ValueError(f"{key} = {name!r}: this scheme sums entries that a compressor selects")
    if traits.composite:
        raise ValueError(f"{key} = {name!r}: this scheme is itself composite")
    return traits


def traits_of(name: str, settings: Settings) -> Aggregation:
    """Return the traits of a scheme with its settings.

    A composite scheme is native, or shares ports, if one of its components does. Raises ValueError for an unknown
    scheme, and for a scheme that cannot be a component.
    """
    own = registry.traits("aggregation", name, Aggregation)
    if not own.parts:
        return own
    full = registry.in_full(registry.find("aggregation", name), settings)
    parts = [part_traits(key, full[key]) for key in own.parts]
    return replace(
        own,
        native=own.native or any(part.native for part in parts),
        shares_ports=own.shares_ports or any(part.shares_ports for part in parts),
    )


async def nodes(comm: Comm, ranks_per_node: int) -> tuple[Comm, Comm]:
    """Return the ranks of this rank's node, and the ranks in its place of all nodes, which are filled in order.

    Raises ValueError if ``ranks_per_node`` is less than 1.
    """
    if ranks_per_node < 1:
        raise ValueError(f"ranks_per_node = {ranks_per_node}: a node has at least 1 rank")
    node = await comm.subcommunicator(lambda rank: rank // ranks_per_node, ("node", ranks_per_node))
    return node, await comm.subcommunicator(lambda rank: rank % ranks_per_node, ("across", ranks_per_node))


def component(key: str, name: str) -> Callable[[Comm, Array], Awaitable[None]]:
    """Return the scheme that the setting ``key`` names. Raises ValueError if it cannot be a component."""
    part_traits(key, name)
    return registry.find("aggregation", name)


def phases(scheme: Offer, *names: str) -> list[Offer] | None:
    """Return the functions ``names`` of a scheme's module; None if it does not define all of them."""
    functions = [half for name in names if (half := own(scheme, name)) is not None]
    return functions if len(functions) == len(names) else None


def half(scheme: Offer, name: str) -> Callable[..., Program[Any]]:
    """Return a function of a scheme's module, with its settings; of an object around a scheme, the method.

    Raises ValueError if the module does not define it.
    """
    if (method := getattr(scheme, name, None)) is not None:
        return cast("Callable[..., Program[Any]]", method)
    function = own(getattr(scheme, "func", scheme), name)
    if function is None:
        raise ValueError(f"the aggregation has no {name}; these have: {', '.join(schemes(name))}")
    settings = getattr(scheme, "keywords", {})
    return partial(function, **{key: settings[key] for key in settings if key in registry.settings_of(function)})


BY_PARTS: Final = ("reduce_scatter", "allgather", "all_to_all")
"""Collectives that are called with the parts of the vector; the others are called with the vector."""

ONE_VECTOR: Final = ("allreduce", *BY_PARTS, "broadcast", "reduce")
"""Collectives of one vector, which is operand and result."""

ALLTOALLV: Final = "alltoallv"
"""Collective that is called with :class:`hpcdl.fabric.vectors.Blocks`."""

COLLECTIVES: Final = (*ONE_VECTOR, ALLTOALLV)


def offered(collective: str, scheme: str) -> Callable[..., Program[None]]:
    """Return the ``collective`` of a scheme: the function of this name in its file; for allreduce the scheme.

    Raises ValueError for an unknown scheme and for one without it, naming those that have it.
    """
    allreduce = registry.find("aggregation", scheme)
    function = allreduce if collective == "allreduce" else own(allreduce, collective)
    if function is None:
        raise ValueError(f"{scheme!r} has no {collective}; these have: {', '.join(schemes(collective))}")
    return function


def schemes(collective: str) -> list[str]:
    """Return the names of the schemes that offer a collective, sorted."""
    return [
        name
        for name in registry.names("aggregation")
        if collective == "allreduce" or own(registry.find("aggregation", name), collective) is not None
    ]


def own(scheme: Offer, collective: str) -> Callable[..., Program[None]] | None:
    """Return the function called ``collective`` that the module of ``scheme`` defines besides it; None if none."""
    function = vars(sys.modules[scheme.__module__]).get(collective)
    defined = getattr(function, "__module__", None) == scheme.__module__ and function is not scheme
    return function if defined else None


def operand(collective: str, buffer: Array, ranks: int) -> Array | Parts | Blocks:
    """Return the argument of the collective: the vector, or its parts; of an alltoallv equal blocks for a trial.

    Raises ValueError for an all-to-all of a vector that cannot be cut into equal parts.
    """
    if collective == "all_to_all" and len(buffer) % ranks:
        raise ValueError(f"all_to_all: {len(buffer)} elements cannot be cut into {ranks} equal parts")
    if collective == ALLTOALLV:
        return Blocks(partition(buffer, ranks), partition(buffer, ranks))
    return partition(buffer, ranks) if collective in BY_PARTS else buffer


def out_of_place_operand(collective: str, operand: Array, result: Array, ranks: int) -> Array | Parts:
    """Return the argument of a library's collective out of place, see :class:`hpcdl.fabric.vectors.OutOfPlace`."""
    both = cast("Array", OutOfPlace(operand, result))  # only the fabric reads its fields
    return Parts(both, partition(result, ranks)) if collective in BY_PARTS else both
