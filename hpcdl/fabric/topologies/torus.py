"""Torus: routers in a grid whose opposite sides are joined."""

from collections.abc import Mapping
from functools import cached_property
from math import prod

import numpy as np

from hpcdl.fabric.topologies import check_size


class Torus:
    """Routers in a grid of any number of dimensions; messages cross them in order, each the shorter way round.

    Dally and Seitz 1987. Of two ways of equal length a message takes the one upward.
    """

    def __init__(self, *, sides: list[int], hosts: int = 1, widths: list[float] | None = None) -> None:
        """``sides``: routers of each dimension, the last is numbered first; ``hosts``: of each router.

        ``widths``: bandwidth of a link of each dimension, in each direction, by that of a host's port; default 1.
        Raises ValueError for other numbers.
        """
        widths = [1.0] * len(sides) if widths is None else widths
        if not sides or any(type(side) is not int or side < 1 for side in sides):
            raise ValueError(f"sides: must be numbers of at least 1, not {sides}")
        if len(widths) != len(sides) or any(width <= 0 for width in widths):
            raise ValueError(f"widths: must be {len(sides)} positive numbers, one for each side, not {widths}")
        if hosts < 1:
            raise ValueError(f"hosts: must be at least 1, not {hosts}")
        self._sides, self._widths = sides, widths
        self.places = prod(sides) * hosts
        check_size(self.places, 2 * len(sides) * prod(sides))
        self.block = hosts

    @cached_property
    def links(self) -> Mapping[str, float]:
        return {
            _link(router, axis, step): self._widths[axis]
            for router in np.ndindex(*self._sides)
            for axis, side in enumerate(self._sides)
            for step in (1, -1)[: side - 1]
        }

    def route(self, source: int, dest: int) -> list[str]:
        at, goal = (list(np.unravel_index(place // self.block, self._sides)) for place in (source, dest))
        links = []
        for axis, side in enumerate(self._sides):
            ahead = int(goal[axis] - at[axis]) % side
            step = 1 if 2 * ahead <= side else -1
            while at[axis] != goal[axis]:
                links.append(_link(at, axis, step))
                at[axis] = (at[axis] + step) % side
        return links

    def is_global(self, link: str) -> bool:  # noqa: ARG002
        """Return True: a torus has no groups, and each link on the way counts."""
        return True


def _link(router: object, axis: int, step: int) -> str:
    """Return the name of a router's link in the direction of ``step``."""
    return f"router {','.join(map(str, router))} {'+' if step > 0 else '-'}{axis}"  # type: ignore[call-overload]
