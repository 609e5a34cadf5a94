"""Schedules of recorded events: operations of each rank, what they require, and their streams; GOAL files of them.

A trace tells when operations ran and not what they waited for. So an event requires those before it of its task.
If it began later than they ended, it also requires the event that ended last before it, and tasks that have ended.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from hpcdl.trace.export import Selection, lanes
from hpcdl.trace.run import NATIVE

if TYPE_CHECKING:
    import pandas as pd

MAX_STREAMS: Final = 256
"""Streams of a rank in a GOAL file, which numbers them with a byte."""


def write_goal(path: Path, selection: Selection) -> int:
    """Write the schedule of a selection; return its number of messages.

    The main program of a rank is on stream 0 (``cpu``), and tasks that it starts on others, so that they overlap.
    Sends and receives whose other end is not in the selection are left out. Raises ValueError for collectives of
    the library, whose messages are unknown, and for more than :data:`MAX_STREAMS` streams; OSError.
    """
    events = selection.events
    native = events[events["label"].astype(str).str.startswith(NATIVE)]
    if len(native):
        label, steps = native["label"].iloc[0], _longest_range(_without(selection.steps, native))
        raise ValueError(
            f"{selection.name} calls {label!r}, whose messages the MPI library does not show"
            + (f"; leave its steps out: --steps {steps}" if steps else ", in every step")
        )
    numbers = {rank: number for number, rank in enumerate(selection.ranks)}
    with path.open("w", encoding="ascii") as file:
        file.write(f"num_ranks {len(numbers)}\n")
        for rank, block in numbers.items():
            file.write(f"\nrank {block} {{\n")
            for each in schedule(selection, rank):
                if each.stream >= MAX_STREAMS:
                    raise ValueError(f"{selection.name}: rank {rank} has more than {MAX_STREAMS} tasks at once")
                text = f"calc {each.length}"
                if direction := {"send": "to", "recv": "from"}.get(each.label):
                    text = f"{each.label} {each.bytes}b {direction} {numbers[each.peer]} tag {each.tag}"
                file.write(f"l{each.number}: {text}{f' cpu {each.stream}' if each.stream else ''}\n")
                file.writelines(f"l{each.number} requires l{other}\n" for other in each.requires)
            file.write("}\n")
    return len(selection.messages) // 2


def _without(steps: pd.DataFrame, events: pd.DataFrame) -> list[int]:
    """Return the numbers of the steps in which no rank has one of the events, ascending."""
    import pandas as pd

    begins = events[["rank", "begin"]].sort_values("begin")
    last = pd.merge_asof(begins, steps.sort_values("begin"), on="begin", by="rank")  # step that began before
    return sorted({*steps["step"].tolist()} - {*last.loc[last["begin"] < last["end"], "step"].tolist()})


def _longest_range(numbers: list[int]) -> str:
    groups = itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
    ranges = [[number for _, number in group] for _, group in groups]
    longest = max(ranges, key=len, default=[])
    return f"{longest[0]}-{longest[-1]}" if longest else ""


class Operation(NamedTuple):
    """Event of a rank, or its time without a recorded event, in a schedule. Times in ns."""

    number: int
    """From 1."""
    label: str
    """Empty: a time without an event."""
    begin: int
    length: int
    peer: int
    bytes: int
    tag: int
    """Number of the message; -1: none."""
    requires: list[int]
    """Numbers of the operations that end before it begins."""
    stream: int
    """Operations of different streams can run at once."""


def schedule(selection: Selection, rank: int) -> Iterator[Operation]:
    """Yield the operations of a rank in the order of their begins, without messages whose other end is missing."""
    events, tags = selection.events, selection.messages
    ordered = events[events["rank"] == rank].sort_values(["begin", "end"], kind="stable")
    streams, dependencies = _streams(ordered), _Dependencies(Counter(ordered["task"]))
    number = 0
    written: dict[int, int] = {}  # row: its number
    columns = (ordered[name].tolist() for name in ("task", "label", "begin", "end", "peer", "bytes"))
    for row, task, label, begin, end, peer, size in zip(ordered.index, *columns, strict=True):
        required = dependencies.of(row, task, begin, end)
        numbers = sorted({written[other] for other in required if other in written})
        if gap := dependencies.gap(begin):
            number += 1
            yield Operation(number, "", begin - gap, gap, -1, 0, -1, numbers, streams[task])
            numbers = [number]
        if label not in {"send", "recv"} or row in tags:
            number += 1
            written[row] = number
            tag = tags.get(row, -1)
            yield Operation(number, label, begin, end - begin, peer, size, tag, numbers, streams[task])


def _streams(events: pd.DataFrame) -> dict[int, int]:
    """Return the stream of each task of a rank: 0 for the main program, different ones for tasks that overlap."""
    spans = events[events["task"] != 0].groupby("task").agg(begin=("begin", "min"), end=("end", "max"))
    spans = spans.sort_values("begin", kind="stable")
    numbers = lanes(spans["begin"].tolist(), spans["end"].tolist())
    return {0: 0, **{task: 1 + lane for task, lane in zip(spans.index.tolist(), numbers, strict=True)}}


class _Dependencies:
    """Events that each event of a rank requires, in the order of their begins; ``left``: events of each task."""

    def __init__(self, left: Counter[int]) -> None:
        self._left = left
        self._last = (0, -1)
        """End and row of the event that ended last before the current one; the row -1: none."""
        self._running: list[tuple[int, int]] = []
        """End and row of events that have not ended."""
        self._open = defaultdict[int, list[tuple[int, int]]](list)
        """By task: its events that no later one of the task requires."""
        self._before: dict[int, tuple[int, set[int]]] = {}
        """By task: begin of its event before, and what that requires."""

    def of(self, row: int, task: int, begin: int, end: int) -> set[int]:
        """Return the rows that an event requires."""
        ended = [event for event in self._running if event[0] <= begin]
        self._running = [event for event in self._running if event[0] > begin]
        self._last = max([*ended, self._last])
        if task in self._before and self._before[task][0] == begin:  # both ends of an exchange
            required = self._before[task][1]
        else:
            own = [event for event in self._open[task] if event[0] <= begin]
            required = {before for _, before in own}
            self._open[task] = [event for event in self._open[task] if event[0] > begin]
            if self._last[0] > max(own, default=(-1, 0))[0]:
                required |= {self._last[1], *(self._joined(task, begin) if own else ())}
        self._before[task] = begin, required
        self._left[task] -= 1
        self._open[task].append((end, row))
        self._running.append((end, row))
        return required

    def _joined(self, task: int, begin: int) -> list[int]:
        """Return the last events of the tasks that ``task`` may have started and that have ended, once each."""
        over = [
            other
            for other, events in self._open.items()
            if other > task and not self._left[other] and all(end <= begin for end, _ in events)
        ]
        return [row for other in over for _, row in self._open.pop(other)]

    def gap(self, begin: int) -> int:
        """Return the time for which no event had run when one began at ``begin`` (ns)."""
        return max(begin - self._last[0], 0)
