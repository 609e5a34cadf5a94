"""Execution traces in the format of MLCommons Chakra: one file per rank; needs the package ``protobuf``.

The messages have the names and numbers of Chakra's schema (schema/protobuf/et_def.proto of
https://github.com/mlcommons/chakra, MIT licence), the attributes those that its feeder reads. Messages follow each
other, each after its length as a varint: one GlobalMetadata, then a Node per event.
"""

import re
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any, Final, NamedTuple

from hpcdl.trace.export import Selection
from hpcdl.trace.files import MAX_DATA, JsonObject, atomic_write, read_bytes
from hpcdl.trace.run import NATIVE
from hpcdl.trace.schedule import Operation, schedule

PACKAGE: Final = "ChakraProtoMsg"

MESSAGES: Final = {
    "AttributeProto": "name:string=1 double_val:double=3 int32_val:int32=7 int64_val:int64=9 bool_val:bool=27 "
    "string_val:string=29",
    "GlobalMetadata": "version:string=1 attr:AttributeProto*=2",
    "Node": "id:uint64=1 name:string=2 type:int32=3 ctrl_deps:uint64*=4 data_deps:uint64*=5 "
    "start_time_micros:uint64=6 duration_micros:uint64=7 attr:AttributeProto*=10",
}
"""Fields of each message that are used; ``*``: repeated."""

COMPUTING, SEND, RECEIVE, COLLECTIVE = 4, 5, 6, 7
"""Types of nodes, of the schema's enumeration."""
LAYERS: Final = "hpcdl layers"
"""Attribute of the metadata: the table of the layers whose training the trace is."""
COLLECTIVES: Final = {
    "allreduce": 0,
    "nonblocking allreduce": 0,
    "reduce": 1,
    "allgather": 2,
    "broadcast": 5,
    "all_to_all": 6,
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
    """Write the events of each rank to ``folder``/hpcdl.RANK.et; return the number of messages.

    The metadata have ``layers``, a table, for those who want the network and not its messages.
    Sends and receives whose other end is not in the selection are left out. A time without an event is a node of
    computing. Raises ValueError for a collective that Chakra does not know, ImportError and OSError.
    """
    from google.protobuf import proto

    types, ranks = message_types(), selection.ranks
    folder.mkdir(parents=True, exist_ok=True)
    for number, rank in enumerate(ranks):
        metadata = types["GlobalMetadata"](version="0.0.4")
        metadata.attr.add(name="case", string_val=selection.name)
        metadata.attr.add(name="rank", int64_val=rank)
        metadata.attr.add(name=LAYERS, string_val=layers)
        with atomic_write(folder / f"hpcdl.{number}.et") as temporary, temporary.open("wb") as file:
            proto.serialize_length_prefixed(metadata, file)
            for operation in schedule(selection, rank):
                proto.serialize_length_prefixed(_node(types["Node"], operation, number, ranks), file)
    return len(selection.messages) // 2


def _node(make: Any, operation: Operation, rank: int, ranks: list[int]) -> Any:
    """Return the node of an operation, with data dependencies only, because the feeder reads no others.

    Ranks are numbered as their files are.
    """
    label, begin, end = operation.label, operation.begin // 1000, (operation.begin + operation.length) // 1000
    collective = COLLECTIVES.get(label.removeprefix(NATIVE)) if label.startswith(NATIVE) else -1
    if collective is None:
        raise ValueError(f"Chakra has no collective like {label!r}")
    kind = COLLECTIVE if collective >= 0 else {"send": SEND, "recv": RECEIVE}.get(label, COMPUTING)
    node = make(id=operation.number, name=label or "untraced", type=kind, data_deps=operation.requires)
    node.start_time_micros, node.duration_micros = begin, end - begin
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
                nodes.append(Node(node.name, node.duration_micros * 1e-6, size, after or before))
                names[node.id], before = node.name, [node.name]
        except (message.DecodeError, ValueError) as error:
            raise ValueError(f"no Chakra trace: {error}") from None
    return "".join(tables), nodes
