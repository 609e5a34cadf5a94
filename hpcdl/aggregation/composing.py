"""What schemes are made of that are made of others: those, by name, and parts of the ranks."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from hpcdl import registry

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable

    from hpcdl.fabric.comm import Array, Comm


async def part(comm: Comm, color: int, division: Hashable) -> Comm:
    """The ranks of the same ``color`` of a ``division``; it is split off once, and kept.

    Programs that run beside each other all wait for the one that comes first, and it must be the same on every
    rank: they ask before their first message.
    """
    if division not in comm.kept:
        comm.kept[division] = comm.start(comm.split(color), shared_tags=True)
    return await comm.kept[division]


def whole(key: str, name: str) -> Callable[[Comm, Array], Awaitable[None]]:
    """The scheme that the setting ``key`` names. Raises ValueError if it cannot be a part of another one."""
    try:
        found = registry.find("aggregation", name)
    except ValueError as error:
        raise ValueError(f"{key} = {name!r}: {error}") from None
    if name == "none":
        raise ValueError(f"{key} = {name!r}: it sums nothing")
    if any(thing is part for thing in vars(sys.modules[found.__module__]).values()):
        raise ValueError(f"{key} = {name!r}: it is made of others itself")
    return found


def halves(scheme: Callable[..., Any], *names: str) -> list[Callable[..., Any]] | None:
    """The halves of a scheme, if its file offers them."""
    offers = vars(sys.modules[scheme.__module__])
    return [offers[name] for name in names] if offers.keys() >= set(names) else None
