"""Fat tree: a switch's link upward has the bandwidth of all its hosts, or a share of it."""

from collections.abc import Mapping
from functools import cached_property
from itertools import accumulate
from operator import mul

from hpcdl.fabric.topologies import check_size


class FatTree:
    """Switches in levels, each with one link upward; oversubscribed where that is narrower than its links below.

    Leiserson 1985. The parallel cables of a real tree are one link here, as if routes were spread evenly.
    """

    def __init__(self, *, hosts: list[int], oversubscription: list[float] | None = None) -> None:
        """``hosts``: of a leaf switch, then leaf switches of a switch above, and so on up to the root.

        ``oversubscription``: bandwidth below a switch by that of its link upward, from the leaves on; at least 1,
        default 1. Raises ValueError for other numbers.
        """
        ratios = [1.0] * (len(hosts) - 1) if oversubscription is None else oversubscription
        if not hosts or any(type(count) is not int or count < 1 for count in hosts):
            raise ValueError(f"hosts: must be numbers of at least 1, from the leaf switches up, not {hosts}")
        if len(ratios) != len(hosts) - 1 or any(ratio < 1 for ratio in ratios):
            levels = f"{len(hosts) - 1} numbers of at least 1, one for each level below the root"
            raise ValueError(f"oversubscription: must be {levels}, not {ratios}")
        self._beneath = [*accumulate(hosts, mul)]
        self._ratios = ratios
        self.places = self._beneath[-1]
        check_size(self.places, 2 * sum(self.places // beneath for beneath in self._beneath[:-1]))
        self.block = hosts[0]

    @cached_property
    def links(self) -> Mapping[str, float]:
        widths, links = 1.0, dict[str, float]()
        for level, (beneath, ratio) in enumerate(zip(self._beneath, self._ratios, strict=False)):
            widths /= ratio
            for switch in range(self.places // beneath):
                links |= dict.fromkeys(_both_ways(level, switch), beneath * widths)
        return links

    def route(self, source: int, dest: int) -> list[str]:
        up, down = list[str](), list[str]()
        for level, beneath in enumerate(self._beneath):
            out, into = source // beneath, dest // beneath
            if out == into:
                break
            up.append(_both_ways(level, out)[0])
            down.append(_both_ways(level, into)[1])
        return [*up, *reversed(down)]

    def is_global(self, link: str) -> bool:
        """Return True for a link upward to the root."""
        return link.startswith(f"switch {len(self._ratios) - 1}.") and link.endswith("up")


def _both_ways(level: int, switch: int) -> tuple[str, str]:
    return f"switch {level}.{switch} up", f"switch {level}.{switch} down"
