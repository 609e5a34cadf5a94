"""Tables of layers, of networks, runs and traces of other tools.

In a PyTorch profiler's trace, marks begin the parts of a step: the recipe in ``hpcdl help networks`` writes them.
Nodes of a Chakra trace have the names that ``hpcdl trace`` gives them, "forward NAME", or those that Chakra makes
of ASTRA-sim's text workloads, "COMP_NODE_NAME_FWD", with the bytes of a layer's gradient in a collective.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod
from pathlib import Path
from statistics import median
from typing import Final

from hpcdl import registry
from hpcdl.analysis.run.pooling import runs_in
from hpcdl.analysis.run.record import Record
from hpcdl.cases.keys.compute_times import flop_of, recorded
from hpcdl.cases.keys.key import Choice, architecture
from hpcdl.data.parts.dataset import content
from hpcdl.fabric.comm import INPUT
from hpcdl.models.layers import read_table
from hpcdl.nn.geometry import Shape
from hpcdl.nn.layer import Layer, SizedLayer
from hpcdl.nn.volumes import volumes
from hpcdl.trace.chakra import read_chakra
from hpcdl.trace.files import JsonObject, from_json, parse_json
from hpcdl.trace.records import RECORDS
from hpcdl.trace.schema import read

MARK: Final = "hpcdl "
REST: Final = "rest"
"""Row of the time of a step in no layer: input, loss, the program's own work, and a profiled optimizer."""
NODE: Final = re.compile(r"(?:COMP_NODE_)?(forward |backward )?(.+?)(_FWD|_BWD_WG|_BWD_IG)?")
KINDS: Final = ("forward", "_FWD"), ("backward", "_BWD_WG", "_BWD_IG")
GRADIENT: Final = re.compile(r"COMM_COLL_NODE_(.+)_(?:ALLREDUCE|REDUCESCATTER)")


def table_of(source: str, shape: Shape | None) -> list[SizedLayer]:
    """Return the layers of a model, a run, a trace or a table; ``shape``: a model's input.

    Raises ValueError, DataError, TraceError, OSError and ImportError.
    """
    path = Path(source)
    if source.endswith((".json", ".json.gz")):
        return of_profile(content(path))
    if path.suffix == ".et":
        return of_nodes(read_chakra(path))
    if path.suffix == ".csv":
        return read_table(path)
    if source not in registry.names("models") and path.exists():
        return of_run(path)
    registry.trust(source, Path())
    return of_network(*architecture(Choice("models", source), None, shape))


def of_network(shape: Shape, layers: Sequence[Layer]) -> list[SizedLayer]:
    """Return the sizes of layers for inputs of ``shape``."""
    sized = []
    for layer in layers:
        given, shape = shape, layer.output(shape)
        if isinstance(layer, SizedLayer):
            sized.append(layer)
        else:
            parameters = volumes([layer], given, 1).parameters
            sized.append(SizedLayer(layer.name, parameters, prod(shape), *flop_of(layer, given)))
    return sized


def of_run(path: Path) -> list[SizedLayer]:
    """Return the layers of the first training of a run, with the times that it measured."""
    run = read(runs_in(path)[0])
    record = next((record for record in map(Record.of, run.described) if record.kind == "train"), None)
    if record is None:
        raise ValueError("has no training")
    spec, batch = record.spec, round((record.batch or record.ranks) / record.ranks)
    times = recorded(run, str(record.model), spec.shape, batch).of_network(spec.layers, spec.shape)
    rest = sum(times.seconds(label, batch) for label in (INPUT, "loss"))
    timed = [
        replace(
            layer,
            forward_seconds=times.seconds(f"forward {layer.name}", batch),
            backward_seconds=times.seconds(f"backward {layer.name}", batch),
            batch=batch,
            update_seconds=times.per_call[f"update {layer.name}"],
        )
        for layer in of_network(spec.shape, spec.layers)
    ]
    return [*timed, SizedLayer(REST, 0, 0, 0, 0, rest, 0.0, batch)]


def of_profile(trace: bytes) -> list[SizedLayer]:
    """Return the layers of a Chrome JSON trace; times are medians over steps but the first. Raises ValueError."""
    spent: dict[tuple[str, str], dict[int, float]] = defaultdict(lambda: defaultdict(float))
    step, sizes = -1, dict[str, tuple[int, int, int]]()
    try:
        marks = sorted(
            (float(event["ts"]), event["name"].removeprefix(MARK).partition(" "))
            for event in _events(trace)
            if event.get("cat") == "user_annotation" and event["name"].startswith(MARK)
        )
        for (begin, (kind, _, name)), (end, _) in pairwise(marks):
            step += kind == "input"
            if kind == "output":
                parameters, elements, batch, layer = name.split(" ", 3)
                sizes[layer] = int(parameters), int(elements) // int(batch), int(batch)
            inside = (kind, name or REST) if kind in {"forward", "backward", "update"} else ("forward", REST)
            spent[inside][step] += 1e-6 * (end - begin)
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"no trace of a PyTorch profiler with marks of layers: {error}") from None
    if step < 1 or not sizes:
        raise ValueError("no two steps with marks of layers; `hpcdl help networks` records them")
    counted = range(1, step + 1)
    times = {key: median(each.get(number, 0.0) for number in counted) for key, each in spent.items()}
    whole = median(sum(each.get(number, 0.0) for each in spent.values()) for number in counted)
    # where a few of many layers are slow in each step, their medians do not add up to that of the step
    scale = whole / (sum(times.values()) or 1.0)
    times = {key: scale * seconds for key, seconds in times.items()}
    rows = _timed(times, {**sizes, REST: (0, 0, min(batch for *_, batch in sizes.values()))})
    return [*rows[:-1], replace(rows[-1], update_seconds=times.get(("update", REST), 0.0))]


def _events(trace: bytes) -> list[JsonObject]:
    """Return the events of a Chrome trace: an array, or that of an object. Raises ValueError."""
    document = parse_json(trace, "trace")
    if isinstance(document, dict) and RECORDS in document:
        raise ValueError("it has the records of a run, which lack times of layers; give the folder of the run")
    return from_json(
        list[JsonObject], document if isinstance(document, list) else document.get("traceEvents"), "traceEvents"
    )


def of_nodes(nodes: Sequence[tuple[str, float, int]]) -> list[SizedLayer]:
    """Return the layers of a Chakra trace, whose nodes have name, seconds and bytes. Raises ValueError."""
    spent, gradients = defaultdict[tuple[str, str], list[float]](list), dict[str, int]()
    for name, seconds, size in nodes:
        if gradient := GRADIENT.fullmatch(name):
            gradients[gradient[1]] = size // 4
        elif (node := NODE.fullmatch(name)) and (kind := node[1] or node[3]):
            spent[kind.strip(), node[2]].append(seconds)
    if not spent:
        raise ValueError("no nodes of layers, such as 'forward conv1' or 'COMP_NODE_conv1_FWD'")
    times = {key: median(seconds) for key, seconds in spent.items()}
    return _timed(times, {name: (gradients.get(name, 0), 0, 1) for _, name in spent})


def _timed(times: Mapping[tuple[str, str], float], sizes: Mapping[str, tuple[int, int, int]]) -> list[SizedLayer]:
    """Return layers with ``times`` by kind and name; ``sizes``: parameters, activations and batch of each."""
    rows = []
    for name, (parameters, activations, batch) in sizes.items():
        forward, backward = (sum(times.get((kind, name), 0.0) for kind in kinds) for kinds in KINDS)
        rows.append(SizedLayer(name, parameters, activations, None, None, forward, backward, batch))
    return rows
