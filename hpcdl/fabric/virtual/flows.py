"""Messages under way on a cluster with a topology: they share links fairly.

After its latency a message is a flow over all links of its route at once. Rates are max-min fair: none can rise
without one that is no higher falling (Bertsekas and Gallager 1992, section 6.5.2). They change when a flow begins
or ends. This is the fluid model of SimGrid (Casanova et al. 2014), without TCP's corrections.
"""

from __future__ import annotations

from heapq import heappop, heappush
from math import inf
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from hpcdl.fabric.wiring import Wiring

ALIKE: Final = 1e-12
"""Relative difference of moments, and of rates, that is rounding."""


def fair_shares(
    routes: Sequence[npt.NDArray[np.int64]], bandwidths: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Return the max-min fair rate of each flow by progressive filling; routes hold indices of ``bandwidths``.

    Links fill up, the narrowest by the number of its flows first; its flows keep this rate.
    """
    lengths = np.array([len(route) for route in routes])
    used, links = np.unique(np.concatenate(routes), return_inverse=True)
    flows = np.repeat(np.arange(len(routes)), lengths)
    room = bandwidths[used]
    rates = np.full(len(routes), inf)
    while links.size:
        crossing = np.bincount(links, minlength=len(used))
        share = np.divide(room, crossing, out=np.full(len(used), inf), where=crossing > 0)
        least = share.min()
        filled = np.zeros(len(routes), bool)
        filled[flows[(share <= least * (1 + ALIKE))[links]]] = True
        rates[filled] = least
        leaving = filled[flows]
        room = room - np.bincount(links[leaving], minlength=len(used)) * least
        links, flows = links[~leaving], flows[~leaving]
    return rates


class Flows:
    """Messages under way; each carries an object that comes back when it is over."""

    def __init__(self, wiring: Wiring, ranks: int, overhead: float) -> None:
        """``overhead``: seconds for which a message occupies both its ranks before it leaves."""
        self._wiring = wiring
        self._overhead = overhead
        self._occupied = [0.0] * ranks
        self._entering: list[tuple[float, int, int, npt.NDArray[np.int64], Any]] = []
        self._sent = 0
        self._now = 0.0
        self._routes: list[npt.NDArray[np.int64]] = []
        self._ends: list[Any] = []
        self._left = np.empty(0)
        self._rates = np.empty(0)
        self.next = inf
        """When rates change next; infinity if nothing is under way."""

    def send(self, now: float, source: int, dest: int, size: int, ends: Any) -> None:
        """Begin a message of ``size`` bytes; :meth:`advance` returns ``ends`` when it is over."""
        latency, route = self._wiring.route(source, dest)
        if self._overhead:
            now = max(now, self._occupied[source], self._occupied[dest]) + self._overhead
            self._occupied[source] = self._occupied[dest] = now
        self._sent += 1
        heappush(self._entering, (now + latency, self._sent, size, route, ends))
        self.next = min(self.next, now + latency)

    def advance(self, moment: float) -> list[Any]:
        """Let time pass until ``moment``, which is :attr:`next`; return the ends of messages that are over."""
        rounding = ALIKE * moment
        done = list[Any]()
        if self._ends:
            self._left -= self._rates * (moment - self._now)
            over = self._left <= self._rates * rounding
            done = [end for end, gone in zip(self._ends, over, strict=True) if gone]
            if done:
                self._routes = [route for route, gone in zip(self._routes, over, strict=True) if not gone]
                self._ends = [end for end, gone in zip(self._ends, over, strict=True) if not gone]
                self._left = self._left[~over]
        entered = list[int]()
        while self._entering and self._entering[0][0] <= moment + rounding:
            _, _, size, route, ends = heappop(self._entering)
            if size:
                entered.append(size)
                self._routes.append(route)
                self._ends.append(ends)
            else:
                done.append(ends)
        self._left = np.concatenate([self._left, entered])
        self._now = moment
        self.next = self._entering[0][0] if self._entering else inf
        if self._ends:
            self._rates = fair_shares(self._routes, np.array(self._wiring.bandwidths))
            self.next = min(self.next, moment + float((self._left / self._rates).min()))
        return done
