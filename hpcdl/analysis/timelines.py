"""Timelines of ranks, from the events of a case: a rank works, waits for another rank, or moves bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from hpcdl.trace.messages import matched

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd

Numbers = npt.NDArray[np.int64]

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
    for one in np.argsort(waits.end, kind="stable"):
        state[first[one] : last[one]] = waits.cause[one]
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
    found = []
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
        found.append(Waits(rank[late], cause[late], begin[late], latest[late]))
    return found


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
    found = []
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
        found.append((own.rank[piece], own.cause[piece], begin, end, states[at]))
    if not found:
        return waits, waits.cause
    rank, cause_of, begin, end, state = (np.concatenate(columns) for columns in zip(*found, strict=True))
    return Waits(rank, cause_of, begin, end), state
