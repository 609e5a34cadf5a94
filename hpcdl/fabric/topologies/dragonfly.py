"""Dragonfly: groups of routers, joined in pairs."""

from collections.abc import Mapping
from functools import cached_property

from hpcdl.fabric.topologies import check_size


class Dragonfly:
    """Every router has a link to each other one of its group, every group one to each other group.

    Kim, Dally, Scott and Abts 2008, with minimal routes: at most a link in the first group, one between groups,
    and one in the last. A group's links to others begin at its routers in turn. Real machines go round busy links.
    """

    def __init__(self, *, groups: int, routers: int, hosts: int, local: float = 1.0, between: float = 1.0) -> None:
        """``routers``: of a group; ``hosts``: of a router.

        ``local``: bandwidth of a link within a group by that of a host's port; ``between``: of one between two
        groups. Raises ValueError for numbers out of range.
        """
        for name, count in (("groups", groups), ("routers", routers), ("hosts", hosts)):
            if count < 1:
                raise ValueError(f"{name}: must be at least 1, not {count}")
        for name, width in (("local", local), ("between", between)):
            if width <= 0:
                raise ValueError(f"{name}: must be more than 0, not {width}")
        self._groups, self._routers, self._hosts = groups, routers, hosts
        self._local, self._between = local, between
        self.places = groups * routers * hosts
        check_size(self.places, groups * (routers * (routers - 1) + groups - 1))
        self.block = hosts

    @cached_property
    def links(self) -> Mapping[str, float]:
        routers = [range(group * self._routers, (group + 1) * self._routers) for group in range(self._groups)]
        within = {_local(a, b): self._local for group in routers for a in group for b in group if a != b}
        groups = range(self._groups)
        return within | {_between(a, b): self._between for a in groups for b in groups if a != b}

    def route(self, source: int, dest: int) -> list[str]:
        router, last = source // self._hosts, dest // self._hosts
        group, goal = router // self._routers, last // self._routers
        if group == goal:
            return [_local(router, last)] if router != last else []
        leaves, enters = self._gateway(group, goal), self._gateway(goal, group)
        first = [_local(router, leaves)] if router != leaves else []
        return [*first, _between(group, goal), *([_local(enters, last)] if enters != last else [])]

    def is_global(self, link: str) -> bool:
        """Return True for a link between two groups."""
        return link.startswith("group")

    def _gateway(self, group: int, other: int) -> int:
        """Return the router of ``group`` with the link to ``other``."""
        return group * self._routers + (other - group - 1) % self._groups % self._routers


def _local(router: int, other: int) -> str:
    return f"router {router} to {other}"


def _between(group: int, other: int) -> str:
    return f"group {group} to {other}"
