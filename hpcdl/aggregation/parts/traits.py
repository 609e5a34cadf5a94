"""Traits that a scheme declares in its own module: ``TRAITS: Final = Aggregation(one_host=True)``."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from hpcdl import registry
from hpcdl.registry import Settings


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
