"""Tables of layers, of networks, runs and traces of other tools.

In a PyTorch profiler's trace, marks begin the parts of a step: the recipe in ``hpcdl help models`` writes them.
Nodes of a Chakra trace have the names that ``hpcdl trace`` gives them, "forward NAME", or those that Chakra makes
of ASTRA-sim's text workloads, "COMP_NODE_NAME_FWD", with the bytes of a layer's gradient in a collective.
"""

import csv
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from math import isfinite, prod
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from hpcdl import registry
from hpcdl.analysis.run.pooling import runs_in
from hpcdl.analysis.run.record import Record
from hpcdl.cases.keys.compute_times import flop_of, measured_trainings
from hpcdl.cases.keys.key import Choice, architecture
from hpcdl.data.parts.dataset import content
from hpcdl.fabric.comm import INPUT
from hpcdl.models.layers import REST, parsed_table, read_table
from hpcdl.nn.geometry import Shape
from hpcdl.nn.layer import Layer, SizedLayer
from hpcdl.nn.volumes import volumes
from hpcdl.trace.export import Node, read_chakra
from hpcdl.trace.files import JsonObject, from_json, parse_json
from hpcdl.trace.run import Run
from hpcdl.trace.schema import RECORDS, SUFFIXES, read

MARK: Final = "hpcdl "
NUMBERS: Final = {"step": 3, "outputs": 2, "output": 3}
"""Numbers of marks. "step": samples, trained parameters and rank; "outputs": trained parameters and elements. An
older recipe has neither, but "output": all parameters, elements and length of a layer's first tensor."""
COLLECTIVE: Final = re.compile(r"_?c10d|(?:nccl|gloo|mpi|ucc|xccl):")
"""Begin of the names of PyTorch's collectives."""
AGAIN: Final = "record it again as in `hpcdl help models`"
NODE: Final = re.compile(r"(?:COMP_NODE_)?(forward |backward )?(.+?)(_FWD|_BWD_WG|_BWD_IG)?")
KINDS: Final = ("forward", "_FWD"), ("backward", "_BWD_WG", "_BWD_IG")
GRADIENT: Final = re.compile(r"COMM_COLL_NODE_(.+)_(?:ALLREDUCE|REDUCESCATTER)")


def table_of(source: str, shape: Shape | None, samples: int | None = None) -> list[SizedLayer]:
    """Return the layers of a model, a run, a trace or a table.

    ``shape``: a model's input; ``samples``: of a forward in a Chakra trace that does not state them. Raises
    ValueError, DataError, TraceError, OSError and ImportError.
    """
    path = Path(source)
    is_file = path.exists() and source not in registry.names("models")
    if shape is not None and is_file:
        raise ValueError("--shape is for networks of hpcdl list models: this source states it")
    if path.suffix == ".et":
        table, nodes = read_chakra(path)
        if not table:
            return of_nodes(nodes, samples)
        if samples is None:
            return parsed_table(csv.reader(table.splitlines()), path)
    if samples is not None:
        raise ValueError("--batch is for Chakra traces of other tools: this one needs none")
    if source.endswith((".json", *SUFFIXES)):
        return of_profile(content(path))
    if path.suffix == ".csv":
        return read_table(path)
    if is_file:
        run = read(runs_in(path)[0])
        return of_run(run, range(len(run.described)))
    registry.trust(source, Path())
    return of_network(*architecture(Choice("models", source), None, shape))


def of_network(shape: Shape, layers: Sequence[Layer]) -> list[SizedLayer]:
    """Return the sizes of layers for inputs of ``shape``."""
    sized = []
    for layer in layers:
        inputs, shape = shape, layer.output(shape)
        if isinstance(layer, SizedLayer):
            sized.append(layer)
        else:
            parameters = volumes([layer], inputs, 1).parameters
            sized.append(SizedLayer(layer.name, parameters, prod(shape), *flop_of(layer, inputs)))
    return sized


def of_run(run: Run, cases: Iterable[int]) -> list[SizedLayer]:
    """Return the layers and times of the first of ``cases`` that trained with events. ValueError: none did."""
    for index in cases:
        for _, _, samples, measured in measured_trainings(run, [index]):
            spec = Record.of(run.described[index]).spec
            times = measured.of_network(spec.layers, spec.shape)
            rest = sum(times.seconds(label, samples) for label in (INPUT, "loss"))
            timed = [
                replace(
                    layer,
                    forward_seconds=times.seconds(f"forward {layer.name}", samples),
                    backward_seconds=times.seconds(f"backward {layer.name}", samples),
                    batch=samples,
                    update_seconds=times.per_call[f"update {layer.name}"],
                )
                for layer in of_network(spec.shape, spec.layers)
            ]
            return [*timed, SizedLayer(REST, 0, 0, 0, 0, rest, 0.0, samples)]
    raise ValueError("has no training with events")


class Mark(NamedTuple):
    """Begin (us) of a part of a profiled step, which lasts until the next mark; numbers as in ``NUMBERS``."""

    begin: float
    kind: str
    layer: str = ""
    numbers: tuple[int, ...] = ()


class ProfiledStep(NamedTuple):
    """Seconds by kind and layer, those in no layer of ``("forward", REST)``; marks; numbers of the step's end."""

    spent: Mapping[tuple[str, str], float]
    outputs: Mapping[str, list[tuple[int, ...]]]
    backwards: Mapping[str, int]
    stated: tuple[int, ...]


def of_profile(trace: bytes) -> list[SizedLayer]:
    """Return the layers of a Chrome JSON trace; times are medians over steps but the first.

    ValueError: no such trace, or one that does not determine parameters, samples and times of its layers.
    """
    steps = [_step(marks) for marks in _parts(_marks(trace))[1:]]
    if not steps or not steps[0].outputs:
        raise ValueError("no two steps with marks of layers; `hpcdl help models` records them")
    sizes = _sizes(steps)
    times = {key: median(step.spent.get(key, 0.0) for step in steps) for each in steps for key in each.spent}
    # where a few of many layers are slow in each step, their medians do not add up to that of the step
    scale = median(sum(step.spent.values()) for step in steps) / (sum(times.values()) or 1.0)
    *rows, rest = _timed({key: scale * seconds for key, seconds in times.items()}, sizes)
    if not steps[0].stated and sum(rest.seconds) > sum(sum(row.seconds) for row in rows):
        raise ValueError(f"most of a step is in none of the layers, and their total is not stated: {AGAIN}")
    return [*rows, replace(rest, update_seconds=scale * times.get(("update", REST), 0.0))]


def _events(trace: bytes) -> list[JsonObject]:
    """Return the events of a Chrome trace: an array, or that of an object. Raises ValueError."""
    document = parse_json(trace, "trace")
    if isinstance(document, dict) and RECORDS in document:
        raise ValueError("it has the records of a run, which lack times of layers; give the folder of the run")
    events = document if isinstance(document, list) else document.get("traceEvents")
    return from_json(list[JsonObject], events, "traceEvents")


def _marks(trace: bytes) -> list[Mark]:
    """Return the marks of one process, and its collectives as such, in the order of time. Raises ValueError."""
    marks, processes = list[Mark](), dict[object, None]()
    try:
        for event in _events(trace):
            category, name = event.get("cat"), str(event.get("name"))
            if category == "user_annotation" and name.startswith(MARK):
                kind = name.split(" ")[1]
                words = name.split(" ", 2 + NUMBERS.get(kind, 0))[2:]
                numbers = tuple(int(words.pop(0)) for _ in range(NUMBERS.get(kind, 0)))
                marks.append(Mark(float(event["ts"]), kind, "".join(words), numbers))
                processes[event.get("pid")] = None
            elif category in {"user_annotation", "cpu_op"} and COLLECTIVE.match(name):
                marks.append(Mark(float(event["ts"]), "collective", name))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"not a PyTorch profiler's trace with marks of layers: {error}") from None
    _only("marks of processes", processes, ": give the file of one rank")
    if not all(isfinite(mark.begin) for mark in marks):
        raise ValueError("a mark has no finite time")
    return sorted(marks, key=lambda mark: mark.begin)


def _parts(marks: Sequence[Mark]) -> list[list[Mark]]:
    """Return the marks of each whole step with its end: "step", or in recordings without it the next "input"."""
    end = "step" if any(mark.kind in {"step", "outputs"} for mark in marks) else "input"
    parts, part = list[list[Mark]](), list[Mark]()
    for mark in marks:
        if part and mark.kind == end:
            parts.append([*part, mark])
            part = []
        if mark.kind == "input":
            part = [mark]
        elif part:  # else it is between steps, such as in an evaluation
            part.append(mark)
    return parts


def _step(marks: Sequence[Mark]) -> ProfiledStep:
    spent, outputs, backwards = defaultdict[Any, float](float), defaultdict[str, list[Any]](list), Counter[str]()
    inside: str | None = None
    for mark, following in pairwise(marks):
        if mark.kind == "collective":
            raise ValueError(
                f"steps wait for other ranks ({mark.layer}): record one process, or in DDP's no_sync()"
            )
        ends = mark.layer if mark.kind in {"output", "outputs"} else None
        if ends != inside:
            raise ValueError(
                f"mark {mark.kind!r} of {mark.layer!r} between forward and output of {inside!r}: record layers of "
                "which none is within another, in one thread, without activation checkpointing"
            )
        inside = mark.layer if mark.kind == "forward" else None
        if ends is not None:
            outputs[ends].append(mark.numbers)
        backwards[mark.layer] += mark.kind == "backward"
        in_layer = mark.kind in {"forward", "backward", "update"}
        part = (mark.kind, mark.layer or REST) if in_layer else ("forward", REST)
        spent[part] += 1e-6 * (following.begin - mark.begin)
    return ProfiledStep(spent, outputs, backwards, marks[-1].numbers)


def _sizes(steps: Sequence[ProfiledStep]) -> dict[str, tuple[int, int, int]]:
    """Return parameters, activations and samples of each layer, and of what is in none. Raises ValueError."""
    sizes, total = dict[str, tuple[int, int, int]](), 0
    if stated := steps[0].stated:
        batches, totals, ranks = zip(*(step.stated for step in steps), strict=True)
        _only("marks of ranks", ranks, ": give the file of one rank")
        total = _only("steps that train", totals, " parameters: freeze layers before the recording")
    else:
        batches = tuple(each[2] for step in steps for outputs in step.outputs.values() for each in outputs)
    samples = _only("batches of", batches, " samples: record equal ones as in `hpcdl help models`")
    if samples < 1:
        raise ValueError(f"steps of {samples} samples: step() must return how many it used")
    for name in dict.fromkeys(name for step in steps for name in step.outputs):
        outputs = [step.outputs.get(name, []) for step in steps]
        counts = [numbers[0] for step in outputs for numbers in step]
        parameters = _only(f"layer {name!r} has", counts, f" parameters, or two layers have this name: {AGAIN}")
        sums = [sum(numbers[1] for numbers in step) for step in outputs]
        elements = _only(f"layer {name!r} gives", sums, f" elements in steps of equal samples: {AGAIN}")
        forwards, backwards = max(map(len, outputs)), min(step.backwards[name] for step in steps)
        faults = {
            f"has {forwards} forward marks in a step whose samples are not stated": not stated and forwards > 1,
            f"has {forwards} forward and {backwards} backward marks in a step: it is frozen, recomputed, or gives "
            "no tensors": backwards < forwards and parameters + backwards > 0,
            f"may share its {parameters} parameters with another": not stated
            and parameters in {other or None for other, *_ in sizes.values()},
            "has the name of the row of what is in none, rename it": name == REST,
        }
        for fault in [fault for fault, present in faults.items() if present]:
            raise ValueError(f"layer {name!r} {fault}: {AGAIN}")
        sizes[name] = parameters, -(-elements // samples), samples
    rest = total - sum(parameters for parameters, *_ in sizes.values())
    if stated and rest < 0:
        line = f"{-rest} parameters of its layers are not the optimizer's: freeze them, requires_grad_(False)"
        raise ValueError(line)
    return {**sizes, REST: (max(0, rest), 0, samples)}


def _only(text: str, values: Iterable[Any], more: str) -> Any:
    """Return the only value, None without any. ValueError: several; its text has two of them before ``more``."""
    first, *others = dict.fromkeys(values) or [None]
    if others:
        raise ValueError(f"{text} {first} and {others[0]}{more}")
    return first


def of_nodes(nodes: Sequence[Node], samples: int | None) -> list[SizedLayer]:
    """Return the layers of a Chakra trace with ``samples`` in a forward pass. Raises ValueError."""
    spent, gradients = defaultdict[tuple[str, str], list[float]](list), defaultdict[str, list[int]](list)
    parts = list[tuple[bool, str]]()
    for node in nodes:
        if collective := GRADIENT.fullmatch(node.name):
            # those of activations and of their gradients have the same name, and follow other parts of the layer
            if f"COMP_NODE_{collective[1]}_BWD_WG" in node.after:
                gradients[collective[1]].append(node.bytes)
        elif (part := NODE.fullmatch(node.name)) and (kind := part[1] or part[3]):
            spent[kind.strip(), part[2]].append(node.seconds)
            parts.append((kind.strip() in KINDS[0], part[2]))
    forwards, backwards = ([name for direction, name in parts if direction is each] for each in (True, False))
    if not forwards or {*forwards} != {*backwards}:
        raise ValueError("no forward and backward nodes of each layer, such as 'forward a' or 'COMP_NODE_a_FWD'")
    names, passes = [*dict.fromkeys(forwards)], [direction for direction, _ in groupby(parts, itemgetter(0))]
    if forwards != names * passes.count(True):
        raise ValueError("layers of one name, or forward passes that overlap: each layer needs a name of its own")
    if samples is None or samples < 1:
        raise ValueError("the samples of its forward passes are not stated: add --batch SAMPLES")
    times = {key: median(seconds) for key, seconds in spent.items()}
    sizes = {name: _only(f"{name!r} has gradients of", gradients[name] or [0], " bytes") for name in names}
    return _timed(times, {name: (size // 4, 0, samples) for name, size in sizes.items()})


def _timed(times: Mapping[tuple[str, str], float], sizes: Mapping[str, tuple[int, int, int]]) -> list[SizedLayer]:
    """Return layers with ``times`` by kind and name; ``sizes``: parameters, activations and batch of each."""
    rows = []
    for name, (parameters, activations, batch) in sizes.items():
        forward, backward = (sum(times.get((kind, name), 0.0) for kind in kinds) for kinds in KINDS)
        rows.append(SizedLayer(name, parameters, activations, None, None, forward, backward, batch))
    return rows
