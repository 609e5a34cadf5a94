"""Messages put together from the two ranks' events, and from them which host is slow.

A host's two ports, out and in, carry no more than they can, and a slow one never does what the others do at their
best. So each port is asked for the most that it was seen to carry: from when a message begins, the bytes that have
begun since and have arrived, by the time that took. That is never more than the port can, whoever shares it and
whatever either end waited for. A ring in which everybody waits for the slowest still shows who that is: of all
others one port or the other was faster at times.

A message begins when both of its ends are there, where a library lets it wait for its receiver (rendezvous); where
a socket takes it up it sets out before, and so counted ports would do what none can. Then it begins with its
sender.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from hpcdl.fabric.comm import LONG

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd

    from hpcdl.trace.run import Run

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]

ENOUGH: Final = 1 << 17
"""Bytes that are timed together, at least."""

REACH: Final = 24
"""Messages that are looked at together, at most."""

BEST: Final = 0.98
"""Quantile of what a port was seen to carry: its most, but for noise."""

IMPOSSIBLE: Final = 1.2
"""Times the most by the senders' beginnings that the most by both ends' may be, where receivers are waited for."""

CROWDED: Final = 2.5
"""Messages under way on a link at a time, on average, beyond which none is seen to have the link for itself."""

MATCHED: Final = 0.9
"""Share of the messages whose two ends must be found; less, and the events are not understood."""

SIZES: Final = 0.02
"""Sizes that differ by less than this share are equal: parts of a vector that does not divide."""

USUAL: Final = 0.75
"""Quantile of the hosts' speeds that is the others': some were never seen at their best."""

SLOW: Final = 0.8
"""A host that has less than this share of the others' speed may be named."""


@dataclass(frozen=True)
class Speeds:
    """How fast the hosts of one traced case were, at their best."""

    fields: Mapping[str, Any]
    hosts: Sequence[str]
    """What is compared: of each host its name, of each rank where there is only one host."""
    several_hosts: bool
    ports: Matrix
    """(2, p): bytes per second out of each and into it; NaN where nothing went."""
    links: Matrix
    """(p, p): bytes per second from row to column, of the messages of this link alone; NaN where nothing went."""

    def crowded(self, cores: float) -> bool:
        """Whether ranks outnumber the ``cores`` of their hosts."""
        return int(self.fields["ranks"] or 1) > cores * (len(self.hosts) if self.several_hosts else 1)

    @property
    def usual(self) -> float:
        """The usual host's speed, that of its faster port."""
        return float(np.nanquantile(np.fmax(*self.ports), USUAL))

    @property
    def shares(self) -> Vector:
        """(p,): each host's speed as a share of the usual one."""
        return np.asarray(np.fmax(*self.ports) / self.usual, np.float64)

    def relative(self) -> Matrix:
        """(p, p): each link's speed as a share of the usual host's; NaN where there was none."""
        return np.asarray(self.links / self.usual, np.float64)

    def slow_hosts(self) -> list[tuple[int, float]]:
        """Hosts that are slow out and in, with their speed as a share of the others', slowest first.

        One that exchanged with slow ones alone may be slow because of them: to be named it is slow with others.
        """
        shares = self.shares
        with_others = np.fmax(self.relative(), self.relative().T)[:, shares >= SLOW]
        slow = (shares < SLOW) & np.isfinite(with_others).any(axis=1) & ~(with_others >= SLOW).any(axis=1)
        return sorted(((int(host), float(shares[host])) for host in np.flatnonzero(slow)), key=lambda one: one[1])


def speeds(run: Run) -> list[Speeds]:
    """Those of every case of ``run`` with events whose messages can be put together."""
    names = [str(rank.get("hostname", "")) for rank in run.environment.get("ranks") or []]
    found = []
    for index, fields in enumerate(run.described):
        told = any(fields.get(name) for name in ("network", "error")) or fields.get("kind") == "pairwise"
        if fields.get("ranks", 1) != 1 and not told:
            events = run.events_of(index)
            if len(events) and (one := of_events(events, fields, names[: int(fields["ranks"] or 1)])):
                found.append(one)
    return found


def of_events(events: pd.DataFrame, fields: Mapping[str, Any], names: Sequence[str]) -> Speeds | None:
    """The speeds of one case's hosts, ``names`` by rank; None where too few messages are understood."""
    messages = matched(events)
    if messages is None:
        return None
    ranks = int(events["rank"].max()) + 1
    hosts = list(dict.fromkeys(names))
    several = len(hosts) > 1
    if several:  # ranks of a host share its port, and what they say to each other does not pass it
        where = np.array([hosts.index(name) for name in names])
        messages = messages.assign(source=where[messages["source"]], dest=where[messages["dest"]])
        messages = messages[messages["source"] != messages["dest"]]
    else:
        hosts = [f"rank {rank}" for rank in range(ranks)]
    found = _measured(messages, len(hosts))
    return None if found is None else Speeds(fields, hosts, several, *found)


def _measured(messages: pd.DataFrame, hosts: int) -> tuple[Matrix, Matrix] | None:
    """Ports and links; None where links are crowded, or too little went over them."""
    alone, together = (
        messages.assign(begin=messages[sides].max(axis=1)) for sides in (["sent"], ["sent", "asked"])
    )
    safe, bold = _ports(alone, hosts), _ports(together, hosts)
    if not (np.isfinite(safe).any() and np.isfinite(bold).any()):
        return None
    sooner = np.nanmax(bold) > IMPOSSIBLE * np.nanmax(safe)
    ports, begun = (safe, alone) if sooner else (bold, together)
    links = np.full((hosts, hosts), np.nan)
    under_way = []
    for _, one in begun.groupby(["source", "dest"]):
        links[one["source"].iloc[0], one["dest"].iloc[0]] = _most(one)
        under_way.append(_under_way(one))
    return None if np.mean(under_way) > CROWDED else (ports, links)


def _ports(messages: pd.DataFrame, hosts: int) -> Matrix:
    """(2, hosts): out and in."""
    found = np.full((2, hosts), np.nan)
    for port, side in zip(found, ("source", "dest"), strict=True):
        for _, one in messages.groupby(side):
            port[one[side].iloc[0]] = _most(one)
    return found


def _most(messages: pd.DataFrame) -> float:
    """The most bytes per second that these were seen to have together; NaN where they are too few."""
    ordered = messages[messages["begin"] < messages["arrived"]].sort_values("begin", kind="stable")
    begin = ordered["begin"].to_numpy(float)
    arrived = _following(ordered["arrived"].to_numpy(float), np.inf)
    order = np.argsort(arrived, axis=1)
    sizes = np.take_along_axis(_following(ordered["bytes"].to_numpy(float), 0), order, axis=1).cumsum(axis=1)
    took = np.take_along_axis(arrived, order, axis=1) - begin[:, None]
    best = np.where(sizes >= ENOUGH, sizes / took, 0).max(axis=1)
    return float(np.quantile(best[best > 0], BEST)) * 1e9 if best.any() else np.nan


def _following(values: Vector, beyond: float) -> Matrix:
    """(values, REACH): each of them and those after it, ``beyond`` after the last."""
    return sliding_window_view(np.append(values, np.full(REACH - 1, beyond)), REACH)


def _under_way(messages: pd.DataFrame) -> float:
    """How many of these are under way at a time, when any is."""
    ordered = messages[messages["begin"] < messages["arrived"]].sort_values("begin", kind="stable")
    begin, arrived = ordered["begin"].to_numpy(float), ordered["arrived"].to_numpy(float)
    if not len(begin):
        return 0.0
    over = np.maximum.accumulate(arrived)
    busy = np.clip(over - np.maximum(begin, np.append(-np.inf, over[:-1])), 0, None).sum()
    return float((arrived - begin).sum() / busy)


def matched(events: pd.DataFrame) -> pd.DataFrame | None:
    """Columns source, dest, bytes, sent, asked, arrived (ns); None where the ends of too many are not found.

    The n-th message of one size from a rank to another is the n-th of that size which the other receives from it,
    within programs of one number, if both ranks number them alike: others go beside each other, and overtake.
    """
    rows = events[(events["peer"] >= 0) & (events["bytes"] >= LONG) & events["label"].isin(["send", "recv"])]
    rows = rows.assign(size=_classes(rows["bytes"].to_numpy())).sort_values("begin", kind="stable")
    sending = rows["label"] == "send"
    sends = rows[sending].rename(columns={"rank": "source", "peer": "dest"})
    receives = rows[~sending].rename(columns={"rank": "dest", "peer": "source"})
    for key in (["task", "size", "source", "dest"], ["size", "source", "dest"]):
        found = _numbered(sends, key).merge(_numbered(receives, key), on=[*key, "number"])
        if len(sends) and len(found) >= MATCHED * len(sends):
            named = {"bytes_x": "bytes", "begin_x": "sent", "begin_y": "asked", "end_y": "arrived"}
            return found.rename(columns=named)[["source", "dest", *named.values()]]
    return None


def _numbered(ends: pd.DataFrame, key: Sequence[str]) -> pd.DataFrame:
    return ends.assign(number=ends.groupby(list(key)).cumcount())


def _classes(sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Equal numbers for equal ``sizes``: they change where the sizes, in order, jump."""
    order = np.argsort(sizes, kind="stable")
    ordered = sizes[order]
    found = np.empty(len(sizes), np.int64)
    found[order] = np.cumsum(np.diff(ordered, prepend=ordered[:1]) > SIZES * ordered)
    return found
