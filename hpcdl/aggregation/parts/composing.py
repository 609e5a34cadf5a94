"""Components of composite schemes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpcdl import registry
from hpcdl.aggregation.parts.collectives import own
from hpcdl.aggregation.parts.traits import part_traits

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hpcdl.fabric.comm import Array, Comm


def component(key: str, name: str) -> Callable[[Comm, Array], Awaitable[None]]:
    """Return the scheme that the setting ``key`` names. Raises ValueError if it cannot be a component."""
    part_traits(key, name)
    return registry.find("aggregation", name)


def halves(scheme: Callable[..., Any], *names: str) -> list[Callable[..., Any]] | None:
    """Return the functions ``names`` of a scheme's module; None if it does not define all of them."""
    found = [half for name in names if (half := own(scheme, name)) is not None]
    return found if len(found) == len(names) else None
