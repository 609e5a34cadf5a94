"""Waiting for other ranks apart from moving bytes, from the events of a case; and the rank that is late.

A message waits from its begin at one end until the other end begins too; from then on it moves. A native
collective waits until its last rank begins. A send that ends before its receive begins was buffered: it moves.
A rank waits while any of its messages waits, and moves bytes while any moves; time in which it computes counts as
neither, because messages in the background cost it nothing.

The late rank of a training step is the one that works longest, of a collective the one that begins last. It is
late by the longest waiting of another rank, but by no more than it works longer, or begins later, than that one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from hpcdl.analysis.run.launches import heights
from hpcdl.analysis.run.record import Record
from hpcdl.analysis.statistics.differences import Vector
from hpcdl.trace.files import JsonObject
from hpcdl.trace.recorder import Rows
from hpcdl.trace.run import NATIVE, Run, matched, no_events

if TYPE_CHECKING:
    import pandas as pd


Numbers = npt.NDArray[np.int64]

ONE_COLLECTIVE: Final = 0.9
"""Minimum share of complete calls, with all ranks inside at one time; else a part of the ranks calls it."""
MAX_EVENTS: Final = 300_000
"""Events of a case that are read, at most: its first steps are enough."""
LATE_SHARE: Final = 0.05
"""Share of the step time that a rank must be late to be named."""
STEPS_SHARE: Final = 0.5
"""Share of the steps in which the named rank must be the late one: one stall makes no late rank."""


Times = Mapping[str, npt.NDArray[Any]]
"""Columns of a table with a row for each step of each rank."""
MAX_GAPS: Final = 4
"""Steps times ranks by rows, at most: ranks of a step that few take part in keep no common step."""


class Waits(NamedTuple):
    """Intervals in which a rank waits for another one (ns on rank 0's clock)."""

    rank: Numbers
    begin: Numbers
    end: Numbers


class Late(NamedTuple):
    """A rank that others wait for."""

    rank: int
    seconds: float
    """Longest waiting of another rank for it, mean over steps."""


@dataclass(frozen=True)
class Waiting:
    """Waiting and transfer of one launch: mean seconds per step, one entry per rank that takes steps."""

    record: Record
    steps: int
    step_seconds: Vector
    waiting: Vector
    transfer: Vector
    latest: Late | None
    """Rank that is waited for longest; None if no rank waits for another, or ranks keep no common step."""
    leads: float
    """Share of the steps in which ``latest`` is the late rank."""
    clock_error: float
    """Greatest error of the ranks' clock offsets (s)."""

    @property
    def late(self) -> Late | None:
        """Return the late rank; None if no rank is late in most steps, or its lateness is within clock error.

        Stages of a pipeline differ in their work by design, so that none is late.
        """
        latest = self.latest
        if latest is None or self.record.stages:
            return None
        limit = max(LATE_SHARE * float(self.step_seconds.mean()), 2 * self.clock_error)
        return latest if latest.seconds > limit and self.leads >= STEPS_SHARE else None

    @property
    def columns(self) -> JsonObject:
        """Return the fields of :class:`hpcdl.analysis.run.launches.Launch` that it gives."""
        return {
            "waiting_seconds": float(self.waiting.mean()),
            "transfer_seconds": float(self.transfer.mean()),
            **({"late_rank": self.late.rank, "late_seconds": self.late.seconds} if self.late else {}),
        }


def of_case(run: Run, index: int) -> Waiting | None:
    """Return the waiting in one case of ``run``; None if its trace does not show it."""
    case = run.recorded[index]
    record, steps = Record.of(case.fields), case.steps
    if record.ranks == 1 or record.error or not (record.is_training or record.kind == "collective"):
        return None
    if case.read_events is no_events or not len(events := run.events_of(index)):
        shown = record.kind == "collective" and len(np.unique(steps["rank"])) > 1
        return _mean(_repetitions(steps, record.warmup_steps), record) if shown else None
    dropped = case.ranks["rank"][case.ranks["dropped"] > 0]
    # A rank drops events beyond a limit; in steps after the last one it would seem to do nothing but work.
    if len(dropped):
        last = events[events["rank"].isin(dropped)].groupby("rank")["begin"].max()
        steps = steps[steps["end"] <= last.min()]
    return of_events(events, steps, record)


def of_events(events: pd.DataFrame, steps: Rows, record: Record) -> Waiting | None:
    """Return the waiting in the measured steps of one case in which its ranks have events; None without such.

    ``events`` is a frame of :class:`hpcdl.trace.run.Run`; ``steps`` has rank, step, begin and end.
    """
    if not len(events):
        return None
    steps = steps[steps["step"] >= record.warmup_steps]
    if len(events) > MAX_EVENTS:
        until = np.partition(events["begin"].to_numpy(), MAX_EVENTS)[MAX_EVENTS]
        events, steps = events[events["begin"] < until], steps[steps["end"] <= until]
    steps = _with_events(steps, events)
    return _mean(_times(events, steps, record.clock_error_seconds), record) if len(steps) else None


def _mean(times: Times, record: Record) -> Waiting | None:
    """Return the means over steps; None if no rank waits or moves bytes."""
    if not (times["waiting"] + times["transfer"]).any():
        return None
    _, index, count = np.unique(times["rank"], return_inverse=True, return_counts=True)
    length, waits, transfer = (
        np.bincount(index, times[name]) / count / 1e9 for name in ("length", "waiting", "transfer")
    )
    latest, leads = (
        _latest(times, "begin" if record.kind == "collective" else "work") if record.keeps_step else (None, 0.0)
    )
    return Waiting(
        record=record,
        steps=len(np.unique(times["step"])),
        step_seconds=length,
        waiting=waits,
        transfer=transfer,
        latest=latest,
        leads=leads,
        clock_error=float(record.clock_error_seconds or 0.0),
    )


def _with_events(steps: Rows, events: pd.DataFrame) -> Rows:
    """Return the steps in which all their ranks have events: the others were not traced."""
    counts = np.zeros(len(steps), np.int64)
    rank, begin = (events[name].to_numpy() for name in ("rank", "begin"))
    for member in np.unique(steps["rank"]):
        begins, rows = np.sort(begin[rank == member]), steps["rank"] == member
        ends = np.searchsorted(begins, steps["end"][rows], "right")
        counts[rows] = ends - np.searchsorted(begins, steps["begin"][rows])
    return steps[~np.isin(steps["step"], steps["step"][counts == 0])]


def _repetitions(steps: Rows, warmup: int) -> Times:
    """Return the times of repetitions without events: each is one native collective, which all ranks call."""
    _, index, count = np.unique(steps["step"], return_inverse=True, return_counts=True)
    latest = np.zeros(len(count), np.int64)
    np.maximum.at(latest, index, steps["begin"])
    late = latest[index] <= steps["end"]
    together = (count == len(np.unique(steps["rank"]))).all() and late.sum() >= ONE_COLLECTIVE * len(steps)
    length = steps["end"] - steps["begin"]
    waiting = np.where(late & together, latest[index] - steps["begin"], 0)
    times = {**{name: steps[name] for name in ("rank", "step", "begin")}, "length": length, "waiting": waiting}
    measured = steps["step"] >= warmup
    return {name: column[measured] for name, column in {**times, "transfer": length - waiting}.items()}


def _times(events: pd.DataFrame, steps: Rows, clock_error: float | None) -> Times:
    """Return rank, step, begin and length of each step, and its waiting, transfer and remaining work (ns)."""
    labels = events["label"].astype(str)
    native = labels.str.startswith(NATIVE).to_numpy()
    computing = (events["peer"] < 0).to_numpy() & ~native
    messages = _waits_for_messages(events, clock_error)
    intervals = [messages, *_waits_for_collectives(events[native], labels[native])]
    waits = Waits(*(np.concatenate(columns) for columns in zip(*intervals, strict=True)))
    rank, begin, end = (events[name].to_numpy(np.int64) for name in ("rank", "begin", "end"))
    tables = []
    for member in np.unique(steps["rank"]):
        table = np.sort(steps[steps["rank"] == member], order="begin")
        first, last = table["begin"], table["end"]
        of_rank, held = rank == member, waits.rank == member
        starts, stops, computes = begin[of_rank], end[of_rank], computing[of_rank]
        held_from, held_to = waits.begin[held], waits.end[held]
        moments = np.unique(np.concatenate([starts, stops, held_from, held_to, first, last]))
        number = np.searchsorted(first, moments[:-1], "right") - 1
        lengths = np.diff(moments) * _inside(moments, first, last)
        free = ~_inside(moments, starts[computes], stops[computes])
        waiting = _inside(moments, held_from, held_to) & free
        moving = _inside(moments, starts[~computes], stops[~computes]) & free & ~waiting
        sums = {
            name: np.bincount(number.clip(0), lengths * chosen, len(table))
            for name, chosen in (("waiting", waiting), ("transfer", moving), ("work", ~waiting & ~moving))
        }
        tables.append(
            {"rank": table["rank"], "step": table["step"], "begin": first, "length": last - first, **sums}
        )
    return {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}


def _inside(times: Numbers, begin: Numbers, end: Numbers) -> npt.NDArray[np.bool_]:
    """Return for each interval between two of ``times`` if it lies in any interval from ``begin`` to ``end``."""
    return heights(times, begin, end, np.ones(len(begin))) > 0


def _waits_for_messages(events: pd.DataFrame, clock_error: float | None) -> Waits:
    """Return the waits of receivers for their senders, and of senders that are held until the receive begins."""
    pairs = matched(events, clock_error)
    send, recv = (events.loc[pairs[side]] for side in ("send", "recv"))
    source, sent, sent_end = (send[name].to_numpy(np.int64) for name in ("rank", "begin", "end"))
    dest, asked, got = (recv[name].to_numpy(np.int64) for name in ("rank", "begin", "end"))
    late = sent > asked
    held = (asked > sent) & (asked < sent_end)
    return Waits(
        np.concatenate([dest[late], source[held]]),
        np.concatenate([asked[late], sent[held]]),
        np.concatenate([np.minimum(sent, got)[late], asked[held]]),
    )


def _waits_for_collectives(events: pd.DataFrame, labels: pd.Series[str]) -> list[Waits]:
    """Return the waits for the last rank of native collectives; none of those that only some of the ranks call."""
    waits = []
    ranks = events["rank"].nunique()
    for _, calls in events.groupby(labels, sort=False):
        ordered = calls.sort_values("begin", kind="stable")
        turn = ordered.groupby("rank").cumcount()
        if (turn.groupby(turn).size() != ranks).any():
            continue
        latest = ordered.groupby(turn)["begin"].transform("max").to_numpy(np.int64)
        rank, begin, end = (ordered[name].to_numpy(np.int64) for name in ("rank", "begin", "end"))
        if (latest <= end).mean() >= ONE_COLLECTIVE:
            late = (begin < latest) & (latest <= end)
            waits.append(Waits(rank[late], begin[late], latest[late]))
    return waits


def _latest(times: Times, delay: str) -> tuple[Late | None, float]:
    """Return the rank that is late by most over all steps, and its share of the steps in which it is the late one.

    ``delay``: column whose largest value in a step is that of the late rank.
    """
    steps, row = np.unique(times["step"], return_inverse=True)
    ranks, column = np.unique(times["rank"], return_inverse=True)
    if len(steps) * len(ranks) > MAX_GAPS * len(row):
        return None, 0.0
    waiting, delays = np.full((2, len(steps), len(ranks)), np.nan)
    waiting[row, column], delays[row, column] = times["waiting"], times[delay]
    last = np.nanargmax(delays, axis=1)
    longer = delays[np.arange(len(last)), last][:, None] - delays
    seconds = np.nanmax(np.minimum(waiting, longer), axis=1) / 1e9
    by_rank = np.bincount(last, seconds)
    rank = int(by_rank.argmax())
    if not by_rank[rank]:
        return None, 0.0
    leads = float(((last == rank) & (seconds > 0)).mean())
    return Late(int(ranks[rank]), float(by_rank[rank]) / len(last)), leads
