"""Timelines for Perfetto (ui.perfetto.dev): TrackEvent packets, compressed; needs the package ``perfetto``.

A rank is a process. Its tracks are steps, computing, sending and receiving; events of one kind that overlap are on
several tracks. An arrow (flow) leads from each send to its receive.
"""

from __future__ import annotations

import heapq
import zlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from hpcdl.trace.messages import matched

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import pandas as pd

    from hpcdl.trace.export.selection import Selection

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
    """Begin or end of a slice."""

    time: int
    order: int
    """At the same time ends come before begins."""
    track: int
    name: str
    begins: bool
    bytes: int
    flow: int
    """0: none."""


def write(path: Path, selection: Selection) -> int:
    """Write the timeline of a selection; return the number of messages whose two ends are in it.

    Raises ModuleNotFoundError without the package ``perfetto``, and OSError.
    """
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

    messages = matched(selection.events)
    flows = dict(zip(messages["send"], range(1, len(messages) + 1), strict=True))
    flows |= dict(zip(messages["recv"], range(1, len(messages) + 1), strict=True))
    tracks: dict[tuple[int, str], int] = {}
    slices = sorted([*_events(selection.events, flows, tracks), *_steps(selection.steps, tracks)])
    names = {name: number for number, name in enumerate(dict.fromkeys(one.name for one in slices), 1)}
    with path.open("wb") as file:
        head = Trace()
        _describe(head, tracks, names)
        file.write(head.SerializeToString())
        for first in range(0, len(slices), BATCH):
            batch = Trace()
            for one in slices[first : first + BATCH]:
                _add(batch.packet.add(), one, names)
            packed = Trace()
            packed.packet.add().compressed_packets = zlib.compress(batch.SerializeToString())
            file.write(packed.SerializeToString())
    return len(messages)


def _events(events: pd.DataFrame, flows: dict[Any, int], tracks: dict[tuple[int, str], int]) -> Iterator[_Slice]:
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
    """Add the packets that name processes, tracks and events."""
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


def _add(packet: Any, one: _Slice, names: dict[str, int]) -> None:
    packet.timestamp = one.time
    packet.trusted_packet_sequence_id, packet.sequence_flags = _SEQUENCE, _NEEDS_STATE
    event = packet.track_event
    event.track_uuid = one.track
    event.type = event.TYPE_SLICE_BEGIN if one.begins else event.TYPE_SLICE_END
    if one.begins:
        event.name_iid = names[one.name]
    if one.bytes:
        event.debug_annotations.add(name_iid=_BYTES, uint_value=one.bytes)
    if one.flow and one.begins:
        event.flow_ids.append(one.flow)
    elif one.flow:
        event.terminating_flow_ids.append(one.flow)
