"""Messages matched from both ranks' events, and slow hosts found from their rates.

Each host has two ports, out and in. The highest rate of a port is computed from its messages: from the beginning
of a message on, the bytes that began since and arrived, by the time that took. This rate is a lower bound of the
port's capacity, independent of sharing and of waits at either end. In a ring all ranks wait for the slowest, but
each other host has one port that was faster at times, so that the slow host still shows.

A message begins when both of its ends are there, where a library lets it wait for its receiver (rendezvous). Where
a socket accepts it earlier, it begins with its sender: counted from the receiver, a link would carry more than it
does when the receiver comes first.

A host is named only among at least three, and with the 95 % interval of its share over parts of the trace.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from hpcdl.analysis.statistics.estimates import Interval, share_interval

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd

    from hpcdl.trace.run import Run


LONG: Final = 1 << 16
"""Least bytes of a message whose time is that of its link: a shorter one's is latency or a copy into a buffer."""


Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]

ENOUGH: Final = 1 << 17
"""Bytes that are timed together, at least."""

REACH: Final = 24
"""Messages that are looked at together, at most."""

BEST: Final = 0.98
"""Quantile of a port's rates: their maximum without outliers."""

IMPOSSIBLE: Final = 1.2
"""Ratio, at most, of a link's rate counted from both ends to its rate counted from the sender."""

ENOUGH_WAITED_FOR: Final = 8
"""Messages of a link whose receivers came first, at least, by which its rate is known."""

MAX_UNDER_WAY: Final = 2.5
"""Messages under way on a link at a time, on average, beyond which none is seen to have the link for itself."""

MATCHED: Final = 0.9
"""Share of the messages whose two ends must be found; less, and the events are not understood."""

SIZES: Final = 0.02
"""Sizes that differ by less than this share are equal: parts of a vector that does not divide."""

USUAL: Final = 0.75
"""Quantile of the hosts' speeds that is the others': some were never seen at their best."""

SLOW: Final = 0.8
"""A host that has less than this share of the others' speed may be named."""

HOSTS: Final = 3
"""Hosts without which none is named: of two that differ, either may be the odd one."""

PARTS: Final = 5
"""Parts of a trace, of equally many messages, over which a share has its interval."""


@dataclass(frozen=True)
class Speeds:
    """Highest speeds of the hosts of one traced case."""

    fields: Mapping[str, Any]
    hosts: Sequence[str]
    """Names of the hosts that are compared."""
    ports: Matrix
    """(2, p): bytes per second out of each and into it; NaN where nothing went."""
    links: Matrix
    """(p, p): bytes per second from row to column, of the messages of this link alone; NaN where nothing went."""
    parts: Matrix
    """(parts of the trace, p): each host's share of the usual speed; NaN where nothing went."""

    def oversubscribed(self, cores: float) -> bool:
        """True if ranks outnumber the ``cores`` of their hosts."""
        return int(self.fields["ranks"] or 1) > cores * len(self.hosts)

    @property
    def usual(self) -> float:
        """The usual host's speed, that of its faster port."""
        return _usual(self.ports)

    @property
    def shares(self) -> Vector:
        """(p,): each host's speed as a share of the usual one."""
        return _shares(self.ports)

    def relative(self) -> Matrix:
        """(p, p): each link's speed as a share of the usual host's; NaN where there was none."""
        return np.asarray(self.links / self.usual, np.float64)

    def slow_hosts(self) -> list[tuple[int, Interval]]:
        """Hosts that are slow out and in, with their speed as a share of the others', slowest first.

        One that exchanged with slow ones alone may be slow because of them: to be named it is slow with others.
        The interval is over parts of the trace, 95 % for all hosts together; one that holds 1 names no host.
        """
        shares = self.shares
        with_others = np.fmax(self.relative(), self.relative().T)[:, shares >= SLOW]
        slow = (shares < SLOW) & np.isfinite(with_others).any(axis=1) & ~(with_others >= SLOW).any(axis=1)
        intervals = [
            (host, share_interval(shares[host], self.parts[:, host], len(self.hosts)))
            for host in map(int, np.flatnonzero(slow))
        ]
        return sorted((pair for pair in intervals if pair[1].high < 1), key=lambda one: one[1].value)


def _usual(ports: Matrix) -> float:
    return float(np.nanquantile(np.fmax(*ports), USUAL))


def _shares(ports: Matrix) -> Vector:
    return np.asarray(np.fmax(*ports) / _usual(ports), np.float64)


def of_case(run: Run, index: int, events: pd.DataFrame) -> Speeds | None:
    """Return the speeds of one case of ``run`` with these events; None if its messages cannot be matched."""
    fields = run.described[index]
    skipped = any(fields.get(name) for name in ("network", "error")) or fields.get("kind") == "pairwise"
    if fields.get("ranks", 1) == 1 or skipped or not len(events):
        return None
    return of_events(events, fields, run.hosts_of(index))


def of_events(events: pd.DataFrame, fields: Mapping[str, Any], names: Sequence[str]) -> Speeds | None:
    """The speeds of one case's hosts, ``names`` by rank; None of fewer than three, or of messages not understood.

    Ranks of a host share its port, and messages between them do not pass it.
    """
    hosts = list(dict.fromkeys(names))
    messages = long_messages(events) if len(hosts) >= HOSTS else None
    if messages is None:
        return None
    where = np.array([hosts.index(name) for name in names])
    messages = messages.assign(source=where[messages["source"]], dest=where[messages["dest"]])
    messages = messages[messages["source"] != messages["dest"]]
    measured = _measured(messages, len(hosts))
    return None if measured is None else Speeds(fields, hosts, *measured)


def _measured(messages: pd.DataFrame, hosts: int) -> tuple[Matrix, Matrix, Matrix] | None:
    """Ports, links and shares by part; None if links carry too many messages at a time, or too few bytes."""
    alone, together = (
        messages.assign(begin=messages[sides].max(axis=1)) for sides in (["sent"], ["sent", "asked"])
    )
    safe, bold = _ports(alone, hosts), _ports(together, hosts)
    if not (np.isfinite(safe).any() and np.isfinite(bold).any()):
        return None
    sooner = np.nanmax(bold) > IMPOSSIBLE * np.nanmax(safe) or _sets_out_before_its_receiver(alone, together)
    ports, begun = (safe, alone) if sooner else (bold, together)
    links = np.full((hosts, hosts), np.nan)
    under_way = []
    for _, group in begun.groupby(["source", "dest"]):
        links[group["source"].iloc[0], group["dest"].iloc[0]] = _most(group)
        under_way.append(_under_way(group))
    if np.mean(under_way) > MAX_UNDER_WAY:
        return None
    ordered = begun.sort_values("begin", kind="stable")
    cuts = np.linspace(0, len(ordered), PARTS + 1).astype(int)
    parts = [_ports(ordered.iloc[begin:end], hosts) for begin, end in itertools.pairwise(cuts)]
    return ports, links, np.array([_shares(part) for part in parts if np.isfinite(part).any()])


def _sets_out_before_its_receiver(alone: pd.DataFrame, together: pd.DataFrame) -> bool:
    """True if a link's rate counted from both ends exceeds that of its messages whose receivers were first."""
    counted = dict(tuple(together.groupby(["source", "dest"])))
    for link, group in alone.groupby(["source", "dest"]):
        best = _best(group, waited_for=True)
        if len(best) >= ENOUGH_WAITED_FOR and _most(counted[link]) > IMPOSSIBLE * np.quantile(best, BEST) * 1e9:
            return True
    return False


def _ports(messages: pd.DataFrame, hosts: int) -> Matrix:
    """(2, hosts): out and in."""
    matrix = np.full((2, hosts), np.nan)
    for port, side in zip(matrix, ("source", "dest"), strict=True):
        for _, group in messages.groupby(side):
            port[group[side].iloc[0]] = _most(group)
    return matrix


def _most(messages: pd.DataFrame) -> float:
    """Return the highest rate of these messages together, bytes/s; NaN if they are too few."""
    best = _best(messages)
    return float(np.quantile(best, BEST)) * 1e9 if len(best) else np.nan


def _best(messages: pd.DataFrame, *, waited_for: bool = False) -> Vector:
    """From the beginning of each of these on, the most bytes per ns that they had together, where they are enough.

    ``waited_for``: from those alone whose receivers came first.
    """
    ordered = messages[messages["begin"] < messages["arrived"]].sort_values("begin", kind="stable")
    begin = ordered["begin"].to_numpy(float)
    arrived = _following(ordered["arrived"].to_numpy(float), np.inf)
    order = np.argsort(arrived, axis=1)
    sizes = np.take_along_axis(_following(ordered["bytes"].to_numpy(float), 0), order, axis=1).cumsum(axis=1)
    took = np.take_along_axis(arrived, order, axis=1) - begin[:, None]
    best = np.where(sizes >= ENOUGH, sizes / took, 0).max(axis=1)
    counts = (ordered["asked"] <= ordered["sent"]).to_numpy() if waited_for else True
    return np.asarray(best[(best > 0) & counts], np.float64)


def _following(values: Vector, beyond: float) -> Matrix:
    """(values, REACH): each of them and those after it, ``beyond`` after the last."""
    return sliding_window_view(np.append(values, np.full(REACH - 1, beyond)), REACH)


def _under_way(messages: pd.DataFrame) -> float:
    """Return the mean number of messages under way, over the time when any is."""
    ordered = messages[messages["begin"] < messages["arrived"]].sort_values("begin", kind="stable")
    begin, arrived = ordered["begin"].to_numpy(float), ordered["arrived"].to_numpy(float)
    if not len(begin):
        return 0.0
    over = np.maximum.accumulate(arrived)
    busy = np.clip(over - np.maximum(begin, np.append(-np.inf, over[:-1])), 0, None).sum()
    return float((arrived - begin).sum() / busy)


def long_messages(events: pd.DataFrame) -> pd.DataFrame | None:
    """Return source, dest, bytes, sent, asked, arrived (ns) of long messages; None if too many lack an end.

    Rates of links need no others; :func:`hpcdl.trace.run.matched` pairs all messages, in the order of their
    ends. The n-th message of one size from a rank to another is the n-th of that size which the other receives
    from it, within programs of one number, if both ranks number them alike: others run concurrently, and overtake.
    """
    rows = events[(events["peer"] >= 0) & (events["bytes"] >= LONG) & events["label"].isin(["send", "recv"])]
    rows = rows.assign(size=_classes(rows["bytes"].to_numpy())).sort_values("begin", kind="stable")
    sending = rows["label"] == "send"
    sends = rows[sending].rename(columns={"rank": "source", "peer": "dest"})
    receives = rows[~sending].rename(columns={"rank": "dest", "peer": "source"})
    for key in (["task", "size", "source", "dest"], ["size", "source", "dest"]):
        merge = _numbered(sends, key).merge(_numbered(receives, key), on=[*key, "number"])
        if len(sends) and len(merge) >= MATCHED * len(sends):
            named = {"bytes_x": "bytes", "begin_x": "sent", "begin_y": "asked", "end_y": "arrived"}
            return merge.rename(columns=named)[["source", "dest", *named.values()]]
    return None


def _numbered(ends: pd.DataFrame, key: Sequence[str]) -> pd.DataFrame:
    return ends.assign(number=ends.groupby(list(key)).cumcount())


def _classes(sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Equal numbers for equal ``sizes``: they change where the sizes, in order, jump."""
    order = np.argsort(sizes, kind="stable")
    ordered = sizes[order]
    places = np.empty(len(sizes), np.int64)
    places[order] = np.cumsum(np.diff(ordered, prepend=ordered[:1]) > SIZES * ordered)
    return places


def over_launches(speeds: Sequence[Speeds]) -> list[Speeds]:
    """Combine the launches of each case on the same hosts: medians, with intervals over launches."""
    cases: dict[tuple[str, ...], list[Speeds]] = {}
    for launch in speeds:
        cases.setdefault((str(launch.fields.get("case")), *launch.hosts), []).append(launch)
    return [
        launches[0]
        if len(launches) == 1
        else replace(
            launches[0],
            ports=np.median([launch.ports for launch in launches], axis=0),
            links=np.median([launch.links for launch in launches], axis=0),
            parts=np.array([launch.shares for launch in launches]),
        )
        for launches in cases.values()
    ]
