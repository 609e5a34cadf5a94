"""Timelines for Perfetto (ui.perfetto.dev): TrackEvent packets, compressed; needs the package ``perfetto``.

A rank is a process. Its tracks are steps, computing, sending and receiving; events of one kind that overlap are on
several tracks. An arrow (flow) leads from each send to its receive.
"""

from __future__ import annotations

import heapq
import zlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
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
    pairs: pd.DataFrame
    """send, recv: rows of the two ends of each message of the case, also of those that are not selected."""

    @cached_property
    def ranks(self) -> list[int]:
        """Ranks that have events, ascending."""
        return sorted(set(self.events["rank"]))

    @cached_property
    def messages(self) -> dict[int, int]:
        """Number of its message, from 0, by row of a send or receive whose other end is selected too."""
        both = self.pairs[self.pairs[["send", "recv"]].isin(self.events.index).all(axis=1)]
        return {row: number for side in ("send", "recv") for number, row in enumerate(both[side])}


def select(
    run: Run, case_index: int, ranks: Collection[int] | None = None, steps: Collection[int] | None = None
) -> Selection:
    """Return the events of ``ranks`` from the begin of the first of ``steps`` to the end of the last one.

    None selects all ranks, or all events, also those outside steps. Raises ValueError if there are no such ranks
    or steps, and TraceError for a damaged file.
    """
    name = str(run.described[case_index].get("case", ""))
    events = run.events_of(case_index)
    pairs = matched(events)  # before a selection, which could take one end of a message
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
    return Selection(name, events.assign(**shift), rows.assign(**shift), int(recorders["dropped"].sum()), pairs)


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


class _Edge(NamedTuple):
    """Begin or end of a slice on a track."""

    time: int
    begins: bool
    """At the same time ends come before begins."""
    track: int
    name: str
    bytes: int
    flow: int
    """0: none."""


def write_perfetto(path: Path, selection: Selection) -> int:
    """Write the timeline of a selection; return the number of messages whose two ends are in it.

    Raises ImportError without the package ``perfetto``, and OSError.
    """
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

    tracks: dict[tuple[int, str], int] = {}
    edges = sorted(_edges(selection, tracks))
    names = {name: number for number, name in enumerate(dict.fromkeys(edge.name for edge in edges), 1)}
    with path.open("wb") as file:
        head = Trace()
        _describe(head, tracks, names)
        file.write(head.SerializeToString())
        for first in range(0, len(edges), BATCH):
            batch = Trace()
            for edge in edges[first : first + BATCH]:
                _add(batch.packet.add(), edge, names)
            packed = Trace()
            packed.packet.add().compressed_packets = zlib.compress(batch.SerializeToString())
            file.write(packed.SerializeToString())
    return len(selection.messages) // 2


def _edges(selection: Selection, tracks: dict[tuple[int, str], int]) -> Iterator[_Edge]:
    """Yield both edges of events and steps; add their tracks."""
    events, steps = selection.events, selection.steps
    labels = events["label"].astype(str)
    kinds = labels.map(lambda label: _KINDS.get(label, "compute"))
    names = labels.where(kinds == "compute", kinds.map(_TO) + events["peer"].astype(str))
    flows = [selection.messages.get(row, -1) + 1 for row in events.index]
    for table in (
        events.assign(kind=kinds, name=names, flow=flows),
        steps.assign(kind="steps", name="step " + steps["step"].astype(str), bytes=0, flow=0),
    ):
        for key, group in table.sort_values("begin", kind="stable").groupby(["rank", "kind"]):
            rank, kind = cast("tuple[int, str]", key)
            ends = group["end"].clip(lower=group["begin"] + 1).tolist()  # one of no length could not be shown
            begins, *others = (group[column].tolist() for column in ("begin", "name", "bytes", "flow"))
            for begin, end, lane, name, size, flow in zip(begins, ends, lanes(begins, ends), *others, strict=True):
                track = tracks.setdefault((rank, kind if lane == 0 else f"{kind} {lane + 1}"), len(tracks) + 1)
                of_begin, of_end = (0, flow) if kind == "receive" else (flow, 0)
                yield _Edge(begin, True, track, name, size, of_begin)
                yield _Edge(end, False, track, name, 0, of_end)


def lanes(begins: Sequence[int], ends: Sequence[int]) -> list[int]:
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


def _add(packet: Any, edge: _Edge, names: dict[str, int]) -> None:
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
