"""Events of a case in the formats of other tools: timelines for Perfetto, schedules in GOAL, traces for Chakra."""

from __future__ import annotations

import bisect
import heapq
import itertools
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from hpcdl.trace.files import MAX_DATA, JsonObject, atomic_write, read_bytes
from hpcdl.trace.run import NATIVE, Run, matched

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
    fields = run.described[case_index]
    name = str(fields.get("case", ""))
    events = run.events_of(case_index)
    # before a selection, which could take one end of a message
    pairs = matched(events, fields.get("clock_error_seconds"))
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
    """Write the timeline of a selection (ui.perfetto.dev); return the number of messages whose two ends are in it.

    A rank is a process. Its tracks are steps, computing, sending and receiving; events of one kind that overlap
    are on several tracks. An arrow (flow) leads from each send to its receive. Packets are compressed. Raises
    ImportError without the package ``perfetto``, and OSError.
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


MAX_STREAMS: Final = 256
"""Streams of a rank in a GOAL file, which numbers them with a byte."""
LAST_STREAM: Final = MAX_STREAMS - 2
"""Largest number of a stream: simulators count streams with a byte, too."""


def write_goal(path: Path, selection: Selection) -> int:
    """Write the schedule of a selection; return its number of messages.

    The main program of a rank is on stream 0 (``cpu``), and tasks that it starts on others, so that they overlap.
    Sends and receives whose other end is not in the selection are computing. Raises ValueError for collectives of
    the library, whose messages are unknown, and for more than :data:`MAX_STREAMS` streams; OSError.
    """
    events = selection.events
    native = events[events["label"].astype(str).str.startswith(NATIVE)]
    if len(native):
        label, steps = native["label"].iloc[0], _range_without(selection.steps, native)
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
                if each.stream > LAST_STREAM:
                    raise ValueError(f"{selection.name}: rank {rank} has more than {MAX_STREAMS} tasks at once")
                text = f"calc {each.length}"
                if direction := {"send": "to", "recv": "from"}.get(each.label):
                    text = f"{each.label} {each.bytes}b {direction} {numbers[each.peer]} tag {each.tag}"
                file.write(f"l{each.number}: {text}{f' cpu {each.stream}' if each.stream else ''}\n")
                file.writelines(f"l{each.number} requires l{other}\n" for other in each.requires)
            file.write("}\n")
    return len(selection.messages) // 2


def _range_without(steps: pd.DataFrame, events: pd.DataFrame) -> str:
    """Return the longest range of steps in which, and between which, no rank has one of the events; or nothing."""
    import pandas as pd

    begins = events[["rank", "begin"]].sort_values("begin")
    last = pd.merge_asof(begins, steps.sort_values("begin"), on="begin", by="rank").dropna()  # that began before
    breaks = {*(2 * last["step"] + (last["begin"] >= last["end"])).astype(int)}  # odd: after the step
    before, free = sorted(breaks), (step for step in sorted({*steps["step"]}) if 2 * step not in breaks)
    groups = itertools.groupby(free, lambda step: bisect.bisect(before, 2 * step))
    longest = max(([*group] for _, group in groups), key=len, default=[])
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
    """Yield the operations of a rank in the order of their begins.

    A trace tells when operations ran and not what they waited for. So an event requires those before it of its
    task. If it began later than they ended, it also requires the event that ended last before it, and tasks that
    have ended. A message whose other end is missing is a time without an event: later ones do not begin early.
    """
    events = selection.events
    ordered = events[events["rank"] == rank].sort_values(["begin", "end"], kind="stable")
    operations = [*_operations(ordered, selection.messages)]
    yield from operations if max(each.stream for each in operations) <= LAST_STREAM else _shared(operations)


def _operations(ordered: pd.DataFrame, tags: dict[int, int]) -> Iterator[Operation]:
    """Yield the operations of a rank's events, by ascending begin, with a stream for each task that overlaps."""
    streams, dependencies = _streams(ordered), _Dependencies(Counter(ordered["task"]))
    number = 0
    written: dict[int, int] = {}  # row: its number
    idle: dict[tuple[int, ...], tuple[int, list[int]]] = {}
    cut = ordered["label"].isin([*_KINDS]) & ~ordered.index.isin([*tags])
    ordered = ordered.assign(label=ordered["label"].astype(str).mask(cut, ""))
    columns = (ordered[name].tolist() for name in ("task", "label", "begin", "end", "peer", "bytes"))
    for row, task, label, begin, end, peer, size in zip(ordered.index, *columns, strict=True):
        required = dependencies.of(row, task, begin, end)
        numbers = sorted({written[other] for other in required if other in written})
        if gap := dependencies.gap(begin):
            # times that require the same operations follow each other: tasks that share streams could not overlap
            base = (begin - gap, *numbers)
            before, numbers = idle.get(base, (begin - gap, numbers))
            if before < begin:
                number += 1
                yield Operation(number, "", before, begin - before, -1, 0, -1, numbers, streams[task])
                numbers = [number]
            idle[base] = begin, numbers
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


def _shared(operations: Sequence[Operation]) -> Iterator[Operation]:
    """Yield operations with few streams: 1 for sends, 2 for receives, which occupy none while they wait."""
    computing = sorted((each for each in operations if each.stream and each.tag < 0), key=lambda each: each.begin)
    numbers = lanes([each.begin for each in computing], [each.begin + each.length for each in computing])
    streams = {each.number: 3 + lane for each, lane in zip(computing, numbers, strict=True)}
    for each in operations:
        stream = streams.get(each.number, 1 + (each.label == "recv"))
        yield each._replace(stream=stream if each.stream else 0)


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


PACKAGE: Final = "ChakraProtoMsg"

MESSAGES: Final = {
    "AttributeProto": "name:string=1 double_val:double=3 int32_val:int32=7 int64_val:int64=9 bool_val:bool=27 "
    "string_val:string=29",
    "GlobalMetadata": "version:string=1 attr:AttributeProto*=2",
    "Node": "id:uint64=1 name:string=2 type:int32=3 ctrl_deps:uint64*=4 data_deps:uint64*=5 "
    "start_time_micros:uint64=6 duration_micros:uint64=7 attr:AttributeProto*=10",
}
"""Fields of each message that are used; ``*``: repeated.

Messages have the names and numbers of Chakra's schema (schema/protobuf/et_def.proto of
https://github.com/mlcommons/chakra, MIT licence), attributes those that its feeder reads.
"""

COMPUTING, SEND, RECEIVE, COLLECTIVE = 4, 5, 6, 7
"""Types of nodes, of the schema's enumeration."""
LAYERS: Final = "hpcdl layers"
"""Attribute of the metadata: the table of the layers whose training the trace is."""
NANOSECONDS: Final = "duration_ns"
"""Attribute of a node: its duration, which the schema has in whole us."""
COLLECTIVES: Final = {
    "allreduce": 0,
    "nonblocking allreduce": 0,
    "reduce": 1,
    "allgather": 2,
    "broadcast": 5,
    "all_to_all": 6,
    "alltoallv": 6,
    "reduce_scatter": 7,
    "barrier": 9,
}
"""Collectives of the library, by their label."""


class Node(NamedTuple):
    """Node of a trace."""

    name: str
    seconds: float
    bytes: int
    """Of a message or a collective."""
    after: list[str]
    """Names of the nodes that it depends on; if it states none, of the one before it."""


@cache
def message_types() -> JsonObject:
    """Return the classes of :data:`MESSAGES`. Raises ImportError without the package ``protobuf``."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="hpcdl/chakra.proto", package=PACKAGE, syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    for message, fields in MESSAGES.items():
        declared = file.message_type.add(name=message)
        for text in fields.split():
            name, kind, number = re.split("[:=]", text)
            field = declared.field.add(name=name, number=int(number))
            field.label = kinds.LABEL_REPEATED if kind.endswith("*") else kinds.LABEL_OPTIONAL
            kind = kind.rstrip("*")
            if kind in MESSAGES:
                field.type_name = f".{PACKAGE}.{kind}"
            else:
                field.type = kinds.Type.Value(f"TYPE_{kind.upper()}")
            if name.endswith("_val"):  # of the values of an attribute, one is set
                if not declared.oneof_decl:
                    declared.oneof_decl.add(name="value")
                field.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    described = {name: pool.FindMessageTypeByName(f"{PACKAGE}.{name}") for name in MESSAGES}
    return {name: message_factory.GetMessageClass(message) for name, message in described.items()}


def write_chakra(folder: Path, selection: Selection, layers: str = "") -> int:
    """Write the events of each rank to ``folder``/hpcdl.RANK.et for Chakra; return the number of messages.

    Messages follow each other, each after its length as a varint: one GlobalMetadata, then a Node per event. The
    metadata have ``layers``, a table, for those who want the network and not its messages. Sends and receives
    whose other end is not in the selection, and times without an event, are nodes of computing. Durations are in
    whole us, rounded so that their sum over the nodes of one type is that of a rank, rounded up; an attribute has
    the ns. Raises ValueError for a collective that Chakra does not know, ImportError and OSError.
    """
    from google.protobuf import proto

    types, ranks = message_types(), selection.ranks
    folder.mkdir(parents=True, exist_ok=True)
    for number, rank in enumerate(ranks):
        metadata = types["GlobalMetadata"](version="0.0.4")
        metadata.attr.add(name="case", string_val=selection.name)
        metadata.attr.add(name="rank", int64_val=rank)
        metadata.attr.add(name=LAYERS, string_val=layers)
        spent = Counter[int]()
        with atomic_write(folder / f"hpcdl.{number}.et") as temporary, temporary.open("wb") as file:
            proto.serialize_length_prefixed(metadata, file)
            for operation in schedule(selection, rank):
                node = _node(types["Node"], operation, number, ranks)
                before = spent[node.type]
                spent[node.type] += operation.length
                node.duration_micros = -(-spent[node.type] // 1000) - -(-before // 1000)
                proto.serialize_length_prefixed(node, file)
    return len(selection.messages) // 2


def _node(make: Any, operation: Operation, rank: int, ranks: list[int]) -> Any:
    """Return the node of an operation, with data dependencies only, because the feeder reads no others.

    Ranks are numbered as their files are.
    """
    label = operation.label
    collective = COLLECTIVES.get(label.removeprefix(NATIVE)) if label.startswith(NATIVE) else -1
    if collective is None:
        raise ValueError(f"Chakra has no collective like {label!r}")
    kind = COLLECTIVE if collective >= 0 else {"send": SEND, "recv": RECEIVE}.get(label, COMPUTING)
    node = make(id=operation.number, name=label or "untraced", type=kind, data_deps=operation.requires)
    node.start_time_micros = operation.begin // 1000
    node.attr.add(name=NANOSECONDS, int64_val=operation.length)
    node.attr.add(name="is_cpu_op", bool_val=kind == COMPUTING)
    if kind != COMPUTING:
        node.attr.add(name="comm_size", int64_val=operation.bytes)
    if kind == COLLECTIVE:
        node.attr.add(name="comm_type", int64_val=collective)
    elif kind != COMPUTING:
        peer = ranks.index(operation.peer)
        source, dest = (rank, peer) if kind == SEND else (peer, rank)
        for name, value in (("comm_src", source), ("comm_dst", dest), ("comm_tag", operation.tag)):
            node.attr.add(name=name, int32_val=value)
    return node


def read_chakra(path: Path) -> tuple[str, list[Node]]:
    """Return the table of layers, or an empty text, and the nodes. Raises ValueError, ImportError and OSError."""
    from google.protobuf import message, proto

    types, nodes, names, before = message_types(), list[Node](), dict[int, str](), list[str]()
    with BytesIO(read_bytes(path, MAX_DATA)) as file:
        try:
            metadata = proto.parse_length_prefixed(types["GlobalMetadata"], file)
            tables = [each.string_val for each in metadata.attr if each.name == LAYERS] if metadata else []
            while (node := proto.parse_length_prefixed(types["Node"], file)) is not None:
                size = sum(attribute.int64_val for attribute in node.attr if attribute.name == "comm_size")
                after = [names[number] for number in (*node.data_deps, *node.ctrl_deps) if number in names]
                exact = [attribute.int64_val for attribute in node.attr if attribute.name == NANOSECONDS]
                spent = exact[0] if exact else 1000 * node.duration_micros
                nodes.append(Node(node.name, spent * 1e-9, size, after or before))
                names[node.id], before = node.name, [node.name]
        except (message.DecodeError, ValueError) as error:
            raise ValueError(f"no Chakra trace: {error}") from None
    return "".join(tables), nodes
