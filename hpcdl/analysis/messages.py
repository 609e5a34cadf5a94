"""Messages put together from the two ranks' events, and from them which host is slow.

A message is over when it has arrived. It can begin when its sender is there and the one before it on the same link
has arrived; and, where a library lets large messages wait for their receiver (rendezvous), when that is there too.
Where a socket takes them up they set out before. What is between is an upper bound of a message's time on the
link, whatever its ends waited for before and after. So a ring in which everybody waits for the slowest still shows
which two of its links are slow. Times are compared among messages of equal size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd

    from hpcdl.trace.run import Run

Matrix = npt.NDArray[np.float64]

LEAST: Final = 1 << 18
"""Bytes below which a message's time is its latency, or that of a copy into a library's or a socket's buffer."""

MATCHED: Final = 0.9
"""Share of the messages whose two ends must be found; less, and the events are not understood."""

SEEN: Final = 0.5
"""Share of the messages whose ends must meet: those are sent when both are there, and show the link."""

FASTEST: Final = 0.1
"""Quantile of the times of messages whose receivers were there first: no link is faster, but for noise."""

EARLY: Final = 0.8
"""A message that comes to a late receiver in less than this share of it had set out before."""

EXCEPTIONS: Final = 0.1
"""Share of late receivers' messages that may seem so by chance; more, and a socket takes them up."""

WAITED: Final = 0.1
"""Share of such a message's time that a receiver must wait for it: else it may have been there long before."""

SIZES: Final = 0.02
"""Sizes that differ by less than this share are equal: parts of a vector that does not divide."""

SLOW: Final = 0.8
"""A host whose messages have less than this share of the others' speed may be named: those that share a link with
others, as pieces beside backward do, seem a fifth slower or faster than they are."""

NAMED: Final = 0.5
"""Share of what is unusual about the links that a host must explain to be named."""

MESSAGE: Final = ["size", "source", "dest", "number"]
"""What the two ends of a message have in common."""


@dataclass(frozen=True)
class Speeds:
    """How fast the links of one traced case were."""

    fields: Mapping[str, Any]
    hosts: Sequence[str]
    """What is compared: of each host its name, of each rank where there is only one host."""
    several_hosts: bool
    classes: Sequence[Matrix]
    """For each size (p, p): usual seconds from row to column; NaN where nothing of that size went."""

    def crowded(self, cores: float) -> bool:
        """Whether ranks outnumber the ``cores`` of their hosts."""
        return int(self.fields["ranks"] or 1) > cores * (len(self.hosts) if self.several_hosts else 1)

    def relative(self, without: Sequence[int] = ()) -> Matrix:
        """(p, p): each link's speed as a share of the usual among messages of its size.

        NaN where there was none. ``without``: the usual is that of links which touch none of these.
        """
        shares = []
        for times in self.classes:
            others = times.copy()
            for host in without:
                others[host, :] = others[:, host] = np.nan
            known = np.isfinite(others).any()
            shares.append(np.nanmedian(others) / times if known else np.full_like(times, np.nan))
        return _over_sizes(shares)

    def slow_hosts(self) -> list[tuple[int, float]]:
        """Hosts whose messages are slow in and out, with their speed as a share of the others', in order found.

        Each time the host is named that explains best what is unusual about the links; its links are set aside,
        and the next is looked for.
        """
        found: list[tuple[int, float]] = []
        while best := self._slowest([host for host, _ in found]):
            found.append(best)
        return found

    def _slowest(self, named: Sequence[int]) -> tuple[int, float] | None:
        candidates = []
        for host in set(range(len(self.hosts))) - set(named):
            speed = self.relative([*named, host])
            speed[named, :] = speed[:, named] = np.nan
            mine = np.zeros(speed.shape, bool)
            mine[host, :] = mine[:, host] = True
            if not np.isfinite(speed[mine]).any() or not np.isfinite(speed[~mine]).any():
                continue
            share = float(np.nanmedian(speed[mine]))
            unusual = np.nansum(np.abs(np.log(speed)))
            left = np.nansum(np.abs(np.log(speed / np.where(mine, share, 1))))
            if share < SLOW and left < (1 - NAMED) * unusual:
                candidates.append((left, host, share))
        if not candidates:
            return None
        _, host, share = min(candidates)
        return host, share


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
    """The speeds of one case's links, None where too few messages are understood; ``names``: hosts by rank."""
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
    if not len(messages):
        return None
    sizes = _classes(messages["bytes"].to_numpy())
    classes = [_times(one, len(hosts)) for _, one in messages.groupby(sizes)]
    return Speeds(fields, hosts, several, classes)


def matched(events: pd.DataFrame) -> pd.DataFrame | None:
    """Columns source, dest, bytes, ns; None where the ends of too many are not found, or do not meet.

    The n-th message of one size from a rank to another is the n-th of that size which the other receives from it:
    those of a probe, of pieces and of whole vectors do not mix. Of one that the library kept for a late receiver
    the ends never meet: it says nothing.
    """
    rows = events[(events["peer"] >= 0) & (events["bytes"] >= LEAST) & events["label"].isin(["send", "recv"])]
    rows = rows.assign(size=_classes(rows["bytes"].to_numpy())).sort_values("begin", kind="stable")
    sending = rows["label"] == "send"
    sends = _numbered(rows[sending].rename(columns={"rank": "source", "peer": "dest"}))
    found = sends.merge(_numbered(rows[~sending].rename(columns={"rank": "dest", "peer": "source"})), on=MESSAGE)
    if not len(sends) or len(found) < MATCHED * len(sends):
        return None
    found = found[(found["begin_y"] <= found["end_x"]) & (found["begin_y"] < found["end_y"])]
    return _timed(found) if len(found) >= SEEN * len(sends) else None


def _timed(found: pd.DataFrame) -> pd.DataFrame:
    """Messages with their times; of ``found``, x is the sender's end and y the receiver's."""
    sent, asked, arrived = found["begin_x"], found["begin_y"], found["end_y"]
    free = found.groupby(["source", "dest"])["end_y"].shift()
    since = np.fmax(sent, free)  # the first one finds its link free
    ns = arrived - np.fmax(since, asked)
    late = asked > sent
    fastest = ns[~late].groupby(found["size"]).quantile(FASTEST)
    sooner = ns < EARLY * found["size"].map(fastest)
    if sooner[late].sum() > EXCEPTIONS * late.sum():
        ns = arrived - since
        found = found[arrived - asked > WAITED * ns]
    return found[["source", "dest"]].assign(bytes=found["bytes_x"], ns=ns)


def _numbered(ends: pd.DataFrame) -> pd.DataFrame:
    return ends.assign(number=ends.groupby(MESSAGE[:-1]).cumcount())


def _classes(sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Equal numbers for equal ``sizes``: they change where the sizes, in order, jump."""
    order = np.argsort(sizes, kind="stable")
    ordered = sizes[order]
    found = np.empty(len(sizes), np.int64)
    found[order] = np.cumsum(np.diff(ordered, prepend=ordered[:1]) > SIZES * ordered)
    return found


def _times(messages: pd.DataFrame, hosts: int) -> Matrix:
    """(hosts, hosts): interquartile means, for of two messages that share a link one seems slow and one fast."""
    found = np.full((hosts, hosts), np.nan)
    for _, one in messages.groupby(["source", "dest"]):
        ns = np.sort(one["ns"].to_numpy())
        cut = len(ns) // 4
        found[one["source"].iloc[0], one["dest"].iloc[0]] = ns[cut : len(ns) - cut].mean() * 1e-9
    return found


def _over_sizes(shares: Sequence[Matrix]) -> Matrix:
    """The median of those that there are."""
    whole = np.array(shares)
    found = np.full(whole.shape[1:], np.nan)
    known = np.isfinite(whole).any(axis=0)
    found[known] = np.nanmedian(whole[:, known], axis=0)
    return found
