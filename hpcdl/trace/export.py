"""Timelines for Perfetto (ui.perfetto.dev): TrackEvent packets, compressed; needs the package ``perfetto``.

A rank is a process. Its tracks are steps, computing, sending and receiving; events of one kind that overlap are on
several tracks. An arrow (flow) leads from each send to its receive.
"""

from __future__ import annotations

import heapq
import itertools
import zlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from hpcdl.trace.run import Run, matched

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Selection:
    """Events and steps of one case, times in ns from the first of them."""

    name: str
    events: pd.DataFrame
    """rank, task, label, begin, end, peer, bytes."""
    steps: pd.DataFrame
    """rank, step, begin, end."""
    dropped: int
    """Events that the recorder had no room for."""


def select(
    run: Run, case_index: int, ranks: Collection[int] | None = None, steps: Collection[int] | None = None
) -> Selection:
    """Return the events of ``ranks`` from the begin of the first of ``steps`` to the end of the last one.

    None selects all ranks, or all events, also those outside steps. Raises ValueError if there are no such ranks
    or steps, and TraceError for a damaged file.
    """
    name = str(run.described[case_index].get("case", ""))
    events = run.events_of(case_index)
    rows = run.rows_of("steps", case_index)
    recorders = run.rows_of("ranks", case_index)
    if ranks is not None:
        if absent := sorted(set(ranks) - set(recorders["rank"])):
            raise ValueError(f"{name} has no rank {absent[0]}")
        events, rows = events[events["rank"].isin(ranks)], rows[rows["rank"].isin(ranks)]
    if steps is not None:
        if absent := sorted(set(steps) - set(rows["step"])):
            raise ValueError(f"{name} has no step {absent[0]}")
        rows = rows[rows["step"].isin(steps)]
        window = rows.groupby("rank").agg(begin=("begin", "min"), end=("end", "max"))
        begin, end = (events["rank"].map(window[column]) for column in ("begin", "end"))
        events = events[(events["begin"] >= begin) & (events["end"] <= end)]
    if events.empty:
        raise ValueError(f"{name} has no recorded events of these ranks and steps")
    start = min(events["begin"].min(), rows["begin"].min() if len(rows) else events["begin"].min())
    shift = {"begin": lambda frame: frame["begin"] - start, "end": lambda frame: frame["end"] - start}
    return Selection(name, events.assign(**shift), rows.assign(**shift), int(recorders["dropped"].sum()))


def write_goal(path: Path, selection: Selection) -> int:
    """Write the schedule of a selection; return its number of messages.

    Sends and receives whose other end is not in the selection are left out. Raises ValueError for collectives of
    the library, whose messages are unknown, and OSError.
    """
    events = selection.events
    native = events[events["label"].astype(str).str.startswith("native ")]
    if len(native):
        label, steps = native["label"].iloc[0], _longest_range(_without(selection.steps, native))
        raise ValueError(
            f"{selection.name} calls {label!r}, whose messages the MPI library does not show"
            + (f"; leave its steps out: --steps {steps}" if steps else ", in every step")
        )
    messages, ranks = matched(events), sorted(set(events["rank"]))
    tags, numbers = numbered(messages), {rank: number for number, rank in enumerate(ranks)}
    with path.open("w", encoding="ascii") as file:
        file.write(f"num_ranks {len(ranks)}\n")
        for rank in ranks:
            file.write(f"\nrank {numbers[rank]} {{\n")
            for number, label, _, length, peer, size, tag, required in schedule(
                events[events["rank"] == rank], tags
            ):
                direction = {"send": "to", "recv": "from"}.get(label)
                text = f"{label} {size}b {direction} {numbers[peer]} tag {tag}" if direction else f"calc {length}"
                file.write(f"l{number}: {text}\n")
                file.writelines(f"l{number} requires l{other}\n" for other in required)
            file.write("}\n")
    return len(messages)


def _without(steps: pd.DataFrame, events: pd.DataFrame) -> list[int]:
    """Return the numbers of the steps in which no rank has one of the events, ascending."""
    used: set[int] = set()
    for rank, rows in steps.sort_values("begin").groupby("rank"):
        begins = events.loc[events["rank"] == rank, "begin"]
        place = rows["begin"].searchsorted(begins, "right") - 1
        inside = (place >= 0) & (begins.to_numpy() < rows["end"].to_numpy()[place])
        used |= {*rows["step"].to_numpy()[place[inside]].tolist()}
    return sorted({*steps["step"].tolist()} - used)


def _longest_range(numbers: list[int]) -> str:
    groups = itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
    ranges = [[number for _, number in group] for _, group in groups]
    longest = max(ranges, key=len, default=[])
    return f"{longest[0]}-{longest[-1]}" if longest else ""


def numbered(messages: pd.DataFrame) -> dict[int, int]:
    """Return the number of its message, from 0, for each row of a matched send or receive."""
    return {row: number for side in ("send", "recv") for number, row in enumerate(messages[side])}


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


def schedule(events: pd.DataFrame, tags: dict[int, int]) -> Iterator[Operation]:
    """Yield the operations of a rank, in the order of their begins; messages without a tag are left out."""
    number = 0
    written: dict[int, int] = {}  # row: its number
    for row, gap, label, begin, length, peer, size, required in _required(
        events.sort_values(["begin", "end"], kind="stable")
    ):
        before = sorted({written[row] for row in required if row in written})
        if gap > 0:
            number += 1
            yield Operation(number, "", begin - gap, gap, -1, 0, -1, before)
            before = [number]
        if label not in {"send", "recv"} or row in tags:
            number += 1
            written[row] = number
            yield Operation(number, label, begin, length, peer, size, tags.get(row, -1), before)


def _required(ordered: pd.DataFrame) -> Iterator[tuple[int, int, str, int, int, int, int, set[int]]]:
    """Yield each event: row, idle time before it, label, begin, length, peer, bytes, and the rows it requires."""
    last: tuple[int, int] | None = None  # end and row of the event that ended last before the current one began
    running: list[tuple[int, int]] = []  # end and row of events that have not ended
    open_rows: dict[int, list[tuple[int, int]]] = {}  # task: its events that no later one of the task requires
    before: dict[int, tuple[int, set[int]]] = {}  # task: begin of its event before, and what that requires
    names = ("task", "label", "begin", "end", "peer", "bytes")
    for row, task, label, begin, end, peer, size in zip(
        ordered.index, *(ordered[name].tolist() for name in names), strict=True
    ):
        ended = [event for event in running if event[0] <= begin]
        running = [event for event in running if event[0] > begin]
        last = max([*ended, last] if last else ended, default=None)
        if task in before and before[task][0] == begin:  # both ends of an exchange
            required = before[task][1]
        else:
            mine = open_rows.get(task, [])
            required = {event for at, event in mine if at <= begin}
            open_rows[task] = [event for event in mine if event[0] > begin]
            required |= {last[1]} if last else set()
        before[task] = begin, required
        open_rows.setdefault(task, []).append((end, row))
        running.append((end, row))
        yield row, begin - last[0] if last else begin, label, begin, end - begin, peer, size, required


BATCH: Final = 20_000
"""Packets that are compressed together."""
_SEQUENCE: Final = 1
_STATE_CLEARED: Final = 1
_NEEDS_STATE: Final = 2
_BYTES: Final = 1
"""Interned name of the annotation "bytes"."""
_KINDS: Final = {"send": "send", "recv": "receive"}
"""Kinds of events that are messages; all others are computing."""
_TO: Final = {"send": "send to ", "receive": "receive from "}


class _Slice(NamedTuple):
    time: int
    order: int
    """At the same time ends come before begins."""
    track: int
    name: str
    begins: bool
    bytes: int
    flow: int
    """0: none."""


def write_perfetto(path: Path, selection: Selection) -> int:
    """Write the timeline of a selection; return the number of messages whose two ends are in it.

    Raises ModuleNotFoundError without the package ``perfetto``, and OSError.
    """
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

    messages = matched(selection.events)
    flows = dict(zip(messages["send"], range(1, len(messages) + 1), strict=True))
    flows |= dict(zip(messages["recv"], range(1, len(messages) + 1), strict=True))
    tracks: dict[tuple[int, str], int] = {}
    slices = sorted([*_events(selection.events, flows, tracks), *_steps(selection.steps, tracks)])
    names = {name: number for number, name in enumerate(dict.fromkeys(edge.name for edge in slices), 1)}
    with path.open("wb") as file:
        head = Trace()
        _describe(head, tracks, names)
        file.write(head.SerializeToString())
        for first in range(0, len(slices), BATCH):
            batch = Trace()
            for edge in slices[first : first + BATCH]:
                _add(batch.packet.add(), edge, names)
            packed = Trace()
            packed.packet.add().compressed_packets = zlib.compress(batch.SerializeToString())
            file.write(packed.SerializeToString())
    return len(messages)


def _events(
    events: pd.DataFrame, flows: dict[object, int], tracks: dict[tuple[int, str], int]
) -> Iterator[_Slice]:
    """Yield the slices of events; add their tracks."""
    labels = events["label"].astype(str)
    kinds = labels.map(lambda label: _KINDS.get(label, "compute"))
    names = labels.where(kinds == "compute", kinds.map(_TO) + events["peer"].astype(str))
    ends_after = events["end"].clip(lower=events["begin"] + 1)  # a slice of no length could not be shown
    table = events.assign(kind=kinds, name=names, end=ends_after).sort_values("begin", kind="stable")
    for key, group in table.groupby(["rank", "kind"], sort=True):
        rank, kind = cast("tuple[int, str]", key)
        begins, ends, sizes = (group[column].tolist() for column in ("begin", "end", "bytes"))
        for row, begin, end, lane, name, size in zip(
            group.index, begins, ends, _lanes(begins, ends), group["name"], sizes, strict=True
        ):
            track = tracks.setdefault((rank, kind if lane == 0 else f"{kind} {lane + 1}"), len(tracks) + 1)
            flow = flows.get(row, 0)
            yield from _slice(begin, end, track, name, size, *((0, flow) if kind == "receive" else (flow, 0)))


def _steps(steps: pd.DataFrame, tracks: dict[tuple[int, str], int]) -> Iterator[_Slice]:
    for rank, step, begin, end in zip(
        *(steps[name].tolist() for name in ("rank", "step", "begin", "end")), strict=True
    ):
        track = tracks.setdefault((rank, "steps"), len(tracks) + 1)
        yield from _slice(begin, max(end, begin + 1), track, f"step {step}")


def _slice(
    begin: int, end: int, track: int, name: str, size: int = 0, flow_at_begin: int = 0, flow_at_end: int = 0
) -> Iterator[_Slice]:
    yield _Slice(begin, 1, track, name, begins=True, bytes=size, flow=flow_at_begin)
    yield _Slice(end, 0, track, name, begins=False, bytes=0, flow=flow_at_end)


def _lanes(begins: Sequence[int], ends: Sequence[int]) -> list[int]:
    """Return a lane for each event, ascending in begin, so that events of one lane do not overlap."""
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    lanes = []
    for begin, end in zip(begins, ends, strict=True):
        while busy and busy[0][0] <= begin:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (end, lane))
        lanes.append(lane)
    return lanes


def _describe(trace: Any, tracks: dict[tuple[int, str], int], names: dict[str, int]) -> None:
    ranks = sorted({rank for rank, _ in tracks})
    for rank in ranks:
        descriptor = trace.packet.add().track_descriptor
        descriptor.uuid = len(tracks) + 1 + rank
        descriptor.process.pid = rank + 1
        descriptor.process.process_name = f"rank {rank}"
    for (rank, name), number in tracks.items():
        descriptor = trace.packet.add().track_descriptor
        descriptor.uuid, descriptor.parent_uuid, descriptor.name = number, len(tracks) + 1 + rank, name
    packet = trace.packet.add()
    packet.trusted_packet_sequence_id, packet.sequence_flags = _SEQUENCE, _STATE_CLEARED
    for name, number in names.items():
        packet.interned_data.event_names.add(iid=number, name=name)
    packet.interned_data.debug_annotation_names.add(iid=_BYTES, name="bytes")


def _add(packet: Any, edge: _Slice, names: dict[str, int]) -> None:
    packet.timestamp = edge.time
    packet.trusted_packet_sequence_id, packet.sequence_flags = _SEQUENCE, _NEEDS_STATE
    event = packet.track_event
    event.track_uuid = edge.track
    event.type = event.TYPE_SLICE_BEGIN if edge.begins else event.TYPE_SLICE_END
    if edge.begins:
        event.name_iid = names[edge.name]
    if edge.bytes:
        event.debug_annotations.add(name_iid=_BYTES, uint_value=edge.bytes)
    if edge.flow and edge.begins:
        event.flow_ids.append(edge.flow)
    elif edge.flow:
        event.terminating_flow_ids.append(edge.flow)
