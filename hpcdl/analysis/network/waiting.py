"""Waiting for late ranks apart from moving bytes, from the events of a case.

A message waits from its begin at one end until the other end begins too; from then on it moves. A native
collective waits until its last rank begins. A send that ends before its receive begins was buffered: it moves.
A rank waits while any of its messages waits, and moves bytes while any moves; time in which it computes counts as
neither, because messages in the background cost it nothing.

Waiting has a cause, found by following the chain of waits (Boehme et al. 2010, root causes of wait states): a rank
that waits for a rank which itself waits is waiting for what that one waits for. The cause is a late rank, which
computes or does nothing, or a transfer between other ranks. A training rank is late by no more than it works
longer in the step: one that begins to work late, because of a slow link, is not late itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from hpcdl.analysis.run.launches import warmup_of
from hpcdl.analysis.run.record_fields import TRAININGS, keeps_step
from hpcdl.analysis.statistics.estimates import Vector, slowest
from hpcdl.trace.run import matched

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd

    from hpcdl.trace.run import Run


WORKING: Final = -1
"""State of a rank that computes, or is in no operation."""
MOVING: Final = -2
"""State of a rank that sends or receives bytes. A state of 0 or more is the rank that is waited for."""
NATIVE: Final = "native "
"""Beginning of the labels of native collectives."""
ONE_COLLECTIVE: Final = 0.9
"""Share of a native collective's calls that must be of all ranks at once; else a part of the ranks calls it."""


_NEVER: Final = np.iinfo(np.int64)


class Timeline(NamedTuple):
    """States of one rank: ``state[i]`` from ``times[i]`` to ``times[i + 1]`` (ns on rank 0's clock)."""

    times: Numbers
    state: Numbers


class Waits(NamedTuple):
    """Intervals in which a rank waits for another one."""

    rank: Numbers
    cause: Numbers
    begin: Numbers
    end: Numbers


def timelines(events: pd.DataFrame) -> dict[int, Timeline]:
    """Return the timeline of each rank that has events, by rank.

    A rank that computes works, whatever its messages do. Else it waits if any message waits, for the peer of the
    message that waits longest. Else it moves bytes if any message moves.
    """
    labels = events["label"].astype(str)
    native = labels.str.startswith(NATIVE).to_numpy()
    computing = (events["peer"] < 0).to_numpy() & ~native
    found = [_waits_for_messages(events), *_waits_for_collectives(events[native], labels[native])]
    waits = Waits(*(np.concatenate(columns) for columns in zip(*found, strict=True)))
    columns = {name: events[name].to_numpy(np.int64) for name in ("rank", "begin", "end")}
    lines = {}
    for rank in np.unique(columns["rank"]):
        mine = columns["rank"] == rank
        work, messages = (
            (columns["begin"][mine & kind], columns["end"][mine & kind]) for kind in (computing, ~computing)
        )
        own = waits.rank == rank
        lines[int(rank)] = _timeline(work, messages, Waits(*(column[own] for column in waits)))
    return lines


def _timeline(work: tuple[Numbers, Numbers], communication: tuple[Numbers, Numbers], waits: Waits) -> Timeline:
    times = np.unique(np.concatenate([*work, *communication, waits.begin, waits.end]))
    state = np.full(max(0, len(times) - 1), WORKING, np.int64)
    state[_inside(times, *communication)] = MOVING
    first, last = np.searchsorted(times, waits.begin), np.searchsorted(times, waits.end)
    for wait in np.argsort(waits.end, kind="stable"):
        state[first[wait] : last[wait]] = waits.cause[wait]
    state[_inside(times, *work)] = WORKING
    return Timeline(times, state)


def _inside(times: Numbers, begin: Numbers, end: Numbers) -> npt.NDArray[np.bool_]:
    """Return for each interval between two of ``times`` if it lies in any interval from ``begin`` to ``end``."""
    change = np.zeros(len(times), np.int64)
    np.add.at(change, np.searchsorted(times, begin), 1)
    np.add.at(change, np.searchsorted(times, end), -1)
    return np.cumsum(change)[:-1] > 0


def _waits_for_messages(events: pd.DataFrame) -> Waits:
    """Return the waits of receivers for their senders, and of senders that are held until the receive begins."""
    pairs = matched(events)
    send, recv = (events.loc[pairs[side]] for side in ("send", "recv"))
    sent, sent_end, asked, got, source, dest = (
        frame[name].to_numpy(np.int64)
        for frame, name in (
            *((send, "begin"), (send, "end"), (recv, "begin"), (recv, "end")),
            *((send, "rank"), (recv, "rank")),
        )
    )
    late = sent > asked
    held = (asked > sent) & (asked < sent_end)
    return Waits(
        np.concatenate([dest[late], source[held]]),
        np.concatenate([source[late], dest[held]]),
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
        together = ordered.groupby(turn)
        latest = together["begin"].transform("max").to_numpy(np.int64)
        cause = ordered.loc[together["begin"].idxmax(), "rank"].to_numpy(np.int64)[turn.to_numpy()]
        begin, end = ordered["begin"].to_numpy(np.int64), ordered["end"].to_numpy(np.int64)
        if (latest <= end).mean() < ONE_COLLECTIVE:
            continue
        late = (begin < latest) & (latest <= end)
        rank = ordered["rank"].to_numpy(np.int64)
        waits.append(Waits(rank[late], cause[late], begin[late], latest[late]))
    return waits


def causes(lines: Mapping[int, Timeline], waits: Waits) -> Waits:
    """Return ``waits`` cut into intervals whose cause is a rank that works, or :data:`MOVING` for a transfer.

    A rank that waits for one that itself waits is waiting for what that one waits for. A circle of waits, which
    errors of clocks make, ends at one of its ranks.
    """
    done = []
    for _ in range(len(lines)):
        cut, state = _cut(lines, waits)
        over = (state < 0) | (state == cut.rank)
        cause = np.where(state == MOVING, MOVING, cut.cause)
        done.append(Waits(cut.rank[over], cause[over], cut.begin[over], cut.end[over]))
        waits = Waits(cut.rank[~over], state[~over], cut.begin[~over], cut.end[~over])
        if not len(waits.rank):
            break
    return Waits(*(np.concatenate(columns) for columns in zip(*done, waits, strict=True)))


def _cut(lines: Mapping[int, Timeline], waits: Waits) -> tuple[Waits, Numbers]:
    """Return ``waits`` cut where the state of their causes changes, and that state in each interval."""
    timelines = []
    for cause in np.unique(waits.cause):
        own = Waits(*(column[waits.cause == cause] for column in waits))
        line = lines.get(int(cause), Timeline(np.empty(0, np.int64), np.empty(0, np.int64)))
        times = np.concatenate([[_NEVER.min], line.times, [_NEVER.max]])
        states = np.concatenate([[WORKING], line.state, [WORKING]]) if len(line.times) else np.array([WORKING])
        first = np.searchsorted(times, own.begin, "right") - 1
        count = np.searchsorted(times, own.end) - first
        piece = np.repeat(np.arange(len(first)), count)
        at = np.arange(len(piece)) - np.repeat(np.cumsum(count) - count, count) + first[piece]
        begin, end = np.maximum(own.begin[piece], times[at]), np.minimum(own.end[piece], times[at + 1])
        timelines.append((own.rank[piece], own.cause[piece], begin, end, states[at]))
    if not timelines:
        return waits, waits.cause
    rank, cause_of, begin, end, state = (np.concatenate(columns) for columns in zip(*timelines, strict=True))
    return Waits(rank, cause_of, begin, end), state


Numbers = npt.NDArray[np.int64]

MAX_EVENTS: Final = 300_000
"""Events of a case that are read, at most: its first steps are enough."""
LATE_SHARE: Final = 0.05
"""Share of the step time that a rank must be late to be named."""
CAUSE_SHARE: Final = 2 / 3
"""Share of the waiting for late ranks that the named one must cause."""
STEPS_SHARE: Final = 0.5
"""Share of the steps in which the named rank must be the latest: one stall makes no late rank."""


class Late(NamedTuple):
    """A rank that others wait for."""

    rank: int
    seconds: float
    """Longest waiting of another rank for it, mean over steps."""


@dataclass(frozen=True)
class Waiting:
    """Waiting and transfer of one launch: mean seconds per step, one entry per rank that takes steps."""

    fields: Mapping[str, Any]
    ranks: Sequence[int]
    steps: int
    """Steps that were read."""
    step_seconds: Vector
    waiting: Vector
    waiting_for_transfers: Vector
    """Part of ``waiting`` that transfers between other ranks cause."""
    transfer: Vector
    latest: Late | None
    """Rank that is waited for longest; None if no rank waits for another."""
    causes: float
    """Share of the waiting for late ranks that ``latest`` causes."""
    leads: float
    """Share of the steps in which ``latest`` is the rank waited for longest."""
    clock_error: float
    """Greatest error of the ranks' clock offsets (s)."""

    @property
    def late(self) -> Late | None:
        """Return the late rank; None if no rank is late in most steps, or its lateness is within clock error.

        Stages of a pipeline differ in their work by design, so that none is late.
        """
        latest = self.latest
        if latest is None or not keeps_step(self.fields) or self.fields.get("stages"):
            return None
        beyond = latest.seconds > max(LATE_SHARE * float(self.step_seconds.mean()), 2 * self.clock_error)
        return latest if beyond and self.causes >= CAUSE_SHARE and self.leads >= STEPS_SHARE else None

    @property
    def columns(self) -> dict[str, Any]:
        """Return the fields of :class:`hpcdl.analysis.run.launches.Launch` that it gives."""
        rank, seconds = self.late or (None, None)
        return {
            "waiting_seconds": float(self.waiting.mean()),
            "transfer_seconds": float(self.transfer.mean()),
            "late_rank": rank,
            "late_seconds": seconds,
        }


def of_case(run: Run, index: int, events: pd.DataFrame) -> Waiting | None:
    """Return the waiting in one case of ``run`` with these events; None if its trace does not show it."""
    fields = run.described[index]
    kind = str(fields.get("kind", "train"))
    if int(fields.get("ranks") or 1) == 1 or fields.get("error") or kind not in (*TRAININGS, "collective"):
        return None
    steps, ranks = run.steps[run.steps["case_index"] == index], run.ranks
    if not len(events) and kind == "collective":
        events = _repetitions(steps)
    dropped = ranks.loc[(ranks["case_index"] == index) & (ranks["dropped"] > 0), "rank"]
    if len(dropped):
        kept = events[events["rank"].isin(dropped)].groupby("rank")["begin"].max()
        steps = steps[steps["end"] <= kept.min()]
    return of_events(events, steps, fields)


def of_events(events: pd.DataFrame, steps: pd.DataFrame, fields: Mapping[str, Any]) -> Waiting | None:
    """Return the waiting in the measured steps of one case in which its ranks have events; None without such.

    ``events`` and ``steps`` have the columns of :class:`hpcdl.trace.run.Run`.
    """
    if not len(events):
        return None
    steps = steps[steps["step"] >= warmup_of(fields)]
    if len(events) > MAX_EVENTS:
        until = np.partition(events["begin"].to_numpy(), MAX_EVENTS)[MAX_EVENTS]
        events, steps = events[events["begin"] < until], steps[steps["end"] <= until]
    steps = _with_events(steps, events)
    if not len(steps):
        return None
    lines = timelines(events)
    return _summed(lines, steps, fields) if any((line.state != WORKING).any() for line in lines.values()) else None


def _repetitions(steps: pd.DataFrame) -> pd.DataFrame:
    """Return repetitions of a collective as events of a native one: it begins when its last rank does."""
    return steps[["rank", "begin", "end"]].assign(task=0, label=f"{NATIVE}repetition", peer=-1, bytes=0)


def _with_events(steps: pd.DataFrame, events: pd.DataFrame) -> pd.DataFrame:
    """Return the steps in which all their ranks have events: the others were not traced."""
    counts = np.zeros(len(steps), np.int64)
    begins = {rank: np.sort(its["begin"].to_numpy()) for rank, its in events.groupby("rank")}
    for rank, its in steps.reset_index(drop=True).groupby("rank"):
        first, last = (its[side].to_numpy() for side in ("begin", "end"))
        mine = begins.get(rank, np.empty(0, np.int64))
        counts[its.index] = np.searchsorted(mine, last, "right") - np.searchsorted(mine, first)
    missing = steps["step"][counts == 0]
    return steps[~steps["step"].isin(missing)]


def _summed(lines: Mapping[int, Timeline], steps: pd.DataFrame, fields: Mapping[str, Any]) -> Waiting:
    """Sum the states of the timelines over the steps of each rank."""
    ranks = np.unique(steps["rank"])
    tables = [_steps_within(lines[int(rank)], steps[steps["rank"] == rank]) for rank in ranks]
    own = steps.assign(length=steps["end"] - steps["begin"]).groupby("rank")["length"].agg(["mean", "size"])
    per_step = 1e9 * own["size"].to_numpy(float)
    moving = np.array([(end - begin)[state == MOVING].sum() for _, begin, end, state in tables])
    waits = [
        Waits(np.full((state >= 0).sum(), rank), *(column[state >= 0] for column in (state, begin, end)))
        for rank, (_, begin, end, state) in zip(ranks, tables, strict=True)
    ]
    cut = causes(lines, Waits(*(np.concatenate(columns) for columns in zip(*waits, strict=True))))
    lengths, place = cut.end - cut.begin, np.searchsorted(ranks, cut.rank)
    waited, for_transfers = (
        np.bincount(place[chosen], lengths[chosen], len(ranks)) / per_step
        for chosen in (slice(None), cut.cause == MOVING)
    )
    worked: dict[tuple[int, int], int] = {}
    if fields.get("kind", "train") in TRAININGS and keeps_step(fields):
        for rank, (number, begin, end, state) in zip(ranks, tables, strict=True):
            times = np.bincount(number, (end - begin) * (state == WORKING))
            worked |= {(step, int(rank)): int(times[step]) for step in np.unique(number).tolist()}
    return Waiting(
        fields,
        ranks.tolist(),
        steps["step"].nunique(),
        own["mean"].to_numpy(float) / 1e9,
        waited,
        for_transfers,
        moving / per_step,
        *_latest(cut, steps, worked),
        float(fields.get("clock_error_seconds") or 0.0),
    )


def _steps_within(line: Timeline, steps: pd.DataFrame) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Return step, begin, end and state of the intervals of a timeline inside the ``steps`` of its rank."""
    ordered = steps.sort_values("begin")
    number, first, last = (ordered[name].to_numpy(np.int64) for name in ("step", "begin", "end"))
    times = np.unique(np.concatenate([line.times, first, last]))
    begin, end = times[:-1], times[1:]
    place = np.searchsorted(line.times, begin, "right") - 1
    known = (place >= 0) & (place < len(line.state))
    state = np.where(known, line.state[place.clip(0, len(line.state) - 1)], WORKING)
    step = np.searchsorted(first, begin, "right") - 1
    inside = (step >= 0) & (begin < last[step])
    return number[step[inside]], begin[inside], end[inside], state[inside]


def _latest(
    cut: Waits, steps: pd.DataFrame, worked: Mapping[tuple[int, int], int]
) -> tuple[Late | None, float, float]:
    """Return the rank that is waited for longest, its share of such waiting, and of the steps in which it leads.

    In a step a rank is late by the longest waiting of another rank for it. ``worked`` (ns), by step and rank,
    limits the waiting to the longer work of the late rank; ranks without it have no limit.
    """
    late = cut.cause >= 0
    rank, cause, begin, end = (column[late] for column in cut)
    step = np.empty(len(rank), np.int64)
    for member in np.unique(rank):
        own = steps[steps["rank"] == member].sort_values("begin")
        place = np.searchsorted(own["begin"].to_numpy(), begin[rank == member], "right") - 1
        step[rank == member] = own["step"].to_numpy()[place]
    keys, place = np.unique(np.stack([step, cause, rank]), axis=1, return_inverse=True)
    longer = [worked.get((s, c), math.inf) - worked.get((s, r), 0) for s, c, r in keys.T.tolist()]
    waited = np.minimum(np.bincount(place.ravel(), end - begin, len(longer)), np.maximum(longer, 0))
    if not waited.any():
        return None, 0.0, 0.0
    pairs, place = np.unique(keys[:2], axis=1, return_inverse=True)
    longest = np.zeros(pairs.shape[1])
    np.maximum.at(longest, place.ravel(), waited)
    by_rank, number = np.bincount(pairs[1], longest), steps["step"].nunique()
    latest = int(by_rank.argmax())
    waited_in, most = slowest(pairs[0], longest)
    own = pairs[1] == latest
    leads = (longest[own] == most[np.searchsorted(waited_in, pairs[0, own])]).sum()
    share = waited[keys[1] == latest].sum() / waited.sum()
    return Late(latest, float(by_rank[latest]) / number / 1e9), float(share), float(leads / number)
