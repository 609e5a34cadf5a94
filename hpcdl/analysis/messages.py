"""Messages put together from the two ranks' events, and from them which host is slow.

A message can begin when both its ends are there, and is over when the first of the two goes on: what is between is
an upper bound of its time on the link, whatever the ends waited for before and after. So a ring in which everybody
waits for the slowest still shows which two of its links are slow. Times are compared among messages of equal size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from hpcdl.analysis.links import CONSPICUOUS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd

    from hpcdl.trace.run import Run

Matrix = npt.NDArray[np.float64]
Table = npt.NDArray[Any]

LEAST: Final = 1 << 18
"""Bytes below which a message's time is its latency, or that of a copy into a library's or a socket's buffer."""

MATCHED: Final = 0.9
"""Share of the messages whose two ends must be found; less, and the events are not understood."""

SEEN: Final = 0.5
"""Share of the messages whose ends must meet: those are sent when both are there, and show the link."""

SIZES: Final = 0.02
"""Sizes that differ by less than this share are equal: parts of a vector that does not divide."""

NAMED: Final = 0.5
"""Share of what is unusual about the links that a host must explain to be named."""

MESSAGE: Final = np.dtype([("source", int), ("dest", int), ("bytes", int), ("ns", int)])


@dataclass(frozen=True)
class Speeds:
    """How fast the links of one traced case were."""

    fields: Mapping[str, Any]
    hosts: Sequence[str]
    """What is compared: of each host its name, of each rank where there is only one host."""
    several_hosts: bool
    classes: Sequence[Matrix]
    """For each size (p, p): median seconds from row to column; NaN where nothing of that size went."""

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
            if share < CONSPICUOUS and left < (1 - NAMED) * unusual:
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
        messages["source"], messages["dest"] = where[messages["source"]], where[messages["dest"]]
        messages = messages[messages["source"] != messages["dest"]]
    else:
        hosts = [f"rank {rank}" for rank in range(ranks)]
    if not len(messages):
        return None
    classes = [_times(messages[one], len(hosts)) for one in _by_size(messages["bytes"])]
    return Speeds(fields, hosts, several, classes)


def matched(events: pd.DataFrame) -> Table | None:
    """(messages,) of dtype :data:`MESSAGE`; None where the ends of too many are not found, or do not meet.

    Ends are looked for among messages of equal size: those of a probe, of pieces and of whole vectors do not mix.
    """
    rows = events[(events["peer"] >= 0) & (events["bytes"] >= LEAST)]
    columns = {name: rows[name].to_numpy(np.int64) for name in ("rank", "peer", "begin", "end", "bytes")}
    label = rows["label"].astype(str).to_numpy()
    found: list[tuple[int, int, int, int]] = []
    total = 0
    for one in _by_size(columns["bytes"]):
        sending = one[label[one] != "recv"]
        sends = _ordered({name: column[sending] for name, column in columns.items()}, label[sending])
        receiving = one[label[one] == "recv"]
        receives = _ordered({name: column[receiving] for name, column in columns.items()})
        total += len(sends)
        found += _matched(sends, receives)
    if not total or len(found) < MATCHED * total:
        return None
    messages = np.array(found, MESSAGE)
    seen = messages[messages["ns"] > 0]
    return seen if len(seen) >= SEEN * len(messages) else None


def _matched(sends: Table, receives: Table) -> list[tuple[int, int, int, int]]:
    """Messages of one size; those are left out whose other ends cannot be told."""
    found: list[tuple[int, int, int, int]] = []
    for dest in np.unique(sends["peer"]).tolist():
        coming = sends[sends["peer"] == dest]
        exchanges = sends[(sends["rank"] == dest) & sends["both"]]
        rest = []
        for source in np.unique(coming["rank"]).tolist():
            one = coming[coming["rank"] == source]
            there = receives[(receives["rank"] == dest) & (receives["peer"] == source)]
            mutual = exchanges[exchanges["peer"] == source]
            if len(there) == len(one):
                found += _paired(one, there)
            elif len(mutual) == len(one) and one["both"].all():
                found += _paired(one, mutual)
            else:
                rest.append(one)
        if rest:
            left = np.concatenate(rest)
            left = left[np.argsort(left["end"], kind="stable")]
            # a rank's exchanges with different ranks on its two sides: one comes in with each, in their order
            if len(rest) == 1:
                left = left[np.argsort(left["begin"], kind="stable")]
            if len(left) == len(exchanges):
                found += _paired(left, exchanges)
    return found


def _ordered(columns: Mapping[str, npt.NDArray[np.int64]], label: npt.NDArray[Any] | None = None) -> Table:
    """Rows in the order in which they began."""
    rows = np.zeros(len(columns["rank"]), [*((name, np.int64) for name in columns), ("both", bool)])
    for name, column in columns.items():
        rows[name] = column
    if label is not None:
        rows["both"] = label == "exchange"
    return rows[np.argsort(rows["begin"], kind="stable")]


def _paired(sends: Table, receives: Table) -> list[tuple[int, int, int, int]]:
    """Messages; of one that the library kept for a late receiver the ends never meet: its time is 0 or less."""
    begin = np.maximum(sends["begin"], receives["begin"])
    end = np.minimum(sends["end"], receives["end"])
    rows = zip(sends["rank"], sends["peer"], sends["bytes"], end - begin, strict=True)
    return [(int(source), int(dest), int(size), int(ns)) for source, dest, size, ns in rows]


def _by_size(sizes: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
    """Where the equal ones among ``sizes`` are: cut where they, in order, jump."""
    order = np.argsort(sizes, kind="stable")
    ordered = sizes[order]
    jumps = np.flatnonzero(np.diff(ordered) > SIZES * ordered[:-1]) + 1
    return np.split(order, jumps)


def _times(messages: Table, hosts: int) -> Matrix:
    found = np.full((hosts, hosts), np.nan)
    for source, dest in np.unique(messages[["source", "dest"]]).tolist():
        mine = (messages["source"] == source) & (messages["dest"] == dest)
        found[source, dest] = np.median(messages["ns"][mine]) * 1e-9
    return found


def _over_sizes(shares: Sequence[Matrix]) -> Matrix:
    """The median of those that there are."""
    whole = np.array(shares)
    found = np.full(whole.shape[1:], np.nan)
    known = np.isfinite(whole).any(axis=0)
    found[known] = np.nanmedian(whole[:, known], axis=0)
    return found
