"""Parallelism of the training cases of a suite or a run: the splits of each layer, and the mesh to choose.

Gholami et al. 2018 (arXiv 1712.04432) give the bytes that split layers exchange for a grid of P_r x P_c ranks:
P_r share a layer, P_c the batch. The formulas of activations are those in the docstrings of :mod:`hpcdl.nn.split`.
The gradient of a layer with all weights on each of p ranks is summed in 2*(p - 1)*|W| bytes (ring; Patarasuk &
Yuan 2009).
"""

import inspect
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Final

from hpcdl import registry
from hpcdl.aggregation.parts.cost import evaluate
from hpcdl.analysis.run.record import Record
from hpcdl.cases.keys.compute_times import ComputeTimes
from hpcdl.cases.keys.key import Choice
from hpcdl.cases.keys.scheme import NONE
from hpcdl.cases.keys.step_spec import StepSpec, balanced
from hpcdl.cases.parts.step_simulation import Conditions, virtual_step
from hpcdl.data.parts.dataset import DataError
from hpcdl.fabric.network import Link
from hpcdl.nn.geometry import Shape
from hpcdl.nn.layer import Layer
from hpcdl.nn.layers import Convolution, Linear, LocallyConnected
from hpcdl.nn.split.division import LINEAR
from hpcdl.nn.split.layers import (
    batch_norm_by_positions,
    convolution_by_filters,
    convolution_by_rows,
    linear_by_inputs,
    linear_by_outputs,
    locally_connected_by_rows,
)
from hpcdl.nn.split.part import by_images, cut
from hpcdl.nn.volumes import FLOAT_BYTES, by_layer
from hpcdl.prediction.network_file import NetworkEstimate
from hpcdl.prediction.programs import scheme_traits
from hpcdl.prediction.steps import Times, predicted_step, unequal
from hpcdl.training.parts.bucketing import bucket_bytes
from hpcdl.training.parts.mesh import Mesh
from hpcdl.training.parts.sections import EXCHANGES

DATA: Final = "data"
"""Split of the batch."""

SPLITTERS: Final[Mapping[type, Mapping[str, Callable[..., object]]]] = {
    Convolution: {"filters": convolution_by_filters, "space": convolution_by_rows},
    LocallyConnected: {"space": locally_connected_by_rows},
    Linear: {"outputs": linear_by_outputs, "inputs": linear_by_inputs},
}
"""Splits of each kind of layer besides that of the batch."""


@dataclass(frozen=True)
class LayerSplits:
    """Sizes of a layer, and the costs of its splits among some ranks."""

    name: str
    data_bytes: int
    weight_bytes: int
    forward_backward_flop: int
    cheapest: str
    """The split whose messages take the least time."""
    split_bytes: Mapping[str, int]
    """Bytes that all ranks send in a step, by split."""
    split_seconds: Mapping[str, float]
    """Time of these messages, by split."""


def stated(splitter: Callable[..., object], direction: str, numbers: Mapping[str, int]) -> int:
    """Return the elements that all ranks send, ``Forward`` or ``Backward``, by the formula in the docstring."""
    line = re.search(rf"^{direction}: (.+)$", inspect.getdoc(splitter) or "", re.MULTILINE)
    if line is None:
        raise ValueError(f"{splitter.__name__}: its docstring has no line {direction!r}")
    return int(evaluate(line[1], numbers))


def variables(
    layer: Layer, shape: Shape, splitter: Callable[..., object], batch: int, ranks: int
) -> dict[str, int]:
    """Return the variables of the formulas for inputs of ``shape``.

    ValueError, naming the layer, if it cannot be split among so many ranks.
    """
    numbers = {"p": ranks, "B": batch}
    parts = [splitter(layer, shape, by_images(shape), rank, ranks) for rank in range(ranks)]
    if isinstance(layer, Linear):
        return {**numbers, "d": layer.outputs if splitter is linear_by_inputs else shape[0]}
    numbers |= dict(zip("HWC", shape, strict=True))
    if splitter in {convolution_by_filters, batch_norm_by_positions}:
        return numbers
    takes = parts[0][0].takes  # type: ignore[index]
    owned = cut(shape, 1, ranks, layer=layer.name, noun="rows").ranges
    halo = 0
    for (low, high), (first, last) in zip(takes.ranges, owned, strict=True):
        begin, end = max(low, 0), min(high, shape[0])
        halo += end - begin - max(0, min(end, last) - max(begin, first))
    return {**numbers, "h": halo, **({"k": layer.window.kernel[0]} if isinstance(layer, Convolution) else {})}


def splits(layers: Sequence[Layer], shape: Shape, batch: int, ranks: int, link: Link) -> list[LayerSplits]:
    """Return the splits of each layer with weights among ``ranks`` ranks, for float32 and a ``batch`` of images.

    Times: a sum or an exchange of n bytes by all ranks takes n/p of the link's beta, and its rounds of alpha: 2*(p
    - 1) for a sum, 2*(p - 1) for gathering and scattering, 4 for halos to both sides and back.
    """
    volumes = {name: sizes for name, _, sizes in by_layer(layers, shape, batch)}
    rows: list[LayerSplits] = []
    for layer in layers:
        inputs, shape = shape, layer.output(shape)
        if (sizes := volumes.get(layer.name)) is None:
            continue
        turns = 2 * (ranks - 1)
        sums = turns * FLOAT_BYTES * sizes.parameters
        moved, rounds = {DATA: sums}, {DATA: turns}
        for split, splitter in SPLITTERS.get(type(layer), {}).items():
            try:
                numbers = variables(layer, inputs, splitter, batch, ranks)
            except ValueError:
                continue
            # every rank reads the images that it takes, and nothing needs their gradient
            is_first = not rows and splitter is not linear_by_inputs
            elements = 0 if is_first else sum(stated(splitter, way, numbers) for way in ("Forward", "Backward"))
            shared = splitter is convolution_by_rows  # each rank has all weights: gradients are summed too
            moved[split] = FLOAT_BYTES * elements + sums * shared
            rounds[split] = (0 if is_first else 4 if "h" in numbers else turns) + turns * shared
        seconds = {split: rounds[split] * link.alpha + moved[split] / ranks * link.beta for split in moved}
        volume = (sizes.data_bytes, sizes.weight_bytes, sizes.forward_backward_flop)
        rows.append(LayerSplits(layer.name, *volume, min(seconds, key=seconds.__getitem__), moved, seconds))
    return rows


WAYS: Final = (
    *product(("model", "space", "hybrid"), LINEAR, ("all",)),
    *(("hybrid", "outputs", exchange) for exchange in EXCHANGES if exchange != "all"),
)
"""Splits of a candidate mesh: of layers of images, of fully connected layers, and the exchange between the two."""


def candidates(ranks: int) -> list[Mesh]:
    """Return the meshes of ``ranks`` ranks: data parallelism alone, and each split on each grid; pipelines."""
    sizes = [size for size in range(2, ranks + 1) if ranks % size == 0]
    split = [
        Mesh(data=ranks // size, model=size, split=way, linear=linear, exchange=exchange)
        for size in sizes
        for way, linear, exchange in WAYS
    ]
    return [Mesh(model=1), *split, *(Mesh(pipeline=size) for size in sizes)]


def label(mesh: Mesh, ranks: int, microbatches: int = 1) -> str:
    """Return the name of a mesh on ``ranks`` ranks, equal for equal meshes: ``hybrid outputs 2x4``, data first."""
    groups, size = mesh.groups(ranks)
    if mesh.pipeline > 1:
        return f"pipeline {groups}x{mesh.pipeline}" + (f" in {microbatches} parts" if microbatches > 1 else "")
    exchange = "" if mesh.exchange == "all" else f" {mesh.exchange}"
    return "data" if size == 1 else f"{mesh.split} {mesh.linear}{exchange} {groups}x{size}"


def with_mesh(spec: StepSpec, mesh: Mesh, times: ComputeTimes, microbatches: int | None = None) -> Any:
    """Return a synchronous case with another mesh; a pipeline's stages are balanced by ``times``.

    ``microbatches``: of a pipeline, by default its usual number.
    """
    if mesh.pipeline == 1:
        return replace(spec, mesh=mesh, training=Choice("training", "synchronous"))  # type: ignore[type-var]
    settings = {} if microbatches is None else {"microbatches": microbatches}
    piped: Any = replace(spec, mesh=mesh, training=Choice("training", "pipeline", settings))  # type: ignore[type-var]
    return piped.with_parts(balanced(spec.layers, spec.shape, mesh.pipeline, times))


@dataclass(frozen=True)
class Parallelism:
    """Meshes and layers of one training on some ranks."""

    layers: Sequence[LayerSplits]
    meshes: Sequence[Record]
    """One prediction a mesh, whose name is its ``parallelism``; with the measured time of a measured case."""

    @property
    def chosen(self) -> Record:
        """The mesh with the shortest simulated step."""
        return min(self.meshes, key=lambda mesh: mesh.predicted_seconds or 0.0)

    @property
    def best(self) -> Record | None:
        """The mesh with the shortest measured step; None if none was measured."""
        measured = (mesh for mesh in self.meshes if mesh.step_seconds is not None)
        return min(measured, key=lambda mesh: mesh.step_seconds or 0.0, default=None)


def parallelism(
    records: Sequence[Record], times: Times, estimate: NetworkEstimate, ranks: Sequence[int] = ()
) -> tuple[list[Parallelism], list[str]]:
    """Return the parallelism of each training among ``records`` on each number of ``ranks``, by default its own.

    The second list has the cases and meshes left out, with reasons. Cases that differ in mesh and ranks only are
    one training. Weakly scaled ones keep the images per rank.
    """
    predictions, left_out = list[Parallelism](), list[str]()
    problems: dict[Any, list[Record]] = {}
    for record in records:
        if record.is_training:
            weak = record.scaling == "weak"
            what = (record.kind, record.model, record.dataset, record.backend, record.dtype, record.aggregation)
            times_of = (record.device, record.flops, record.times, record.time_scale)
            batch = record.batch_per_rank if weak else record.global_batch
            problems.setdefault((*what, *times_of, weak, batch), []).append(record)
    for cases in problems.values():
        farthest = max((record.ranks for record in cases if record.step_seconds), default=None)
        for p in ranks or sorted({int(record.ranks) for record in cases if record.ranks > 1}):
            try:
                compared, reasons = _compared(cases, p, times, estimate, farthest)
            except (ValueError, TypeError, DataError, OSError) as error:
                left_out.append(f"{cases[0].model} on {p} ranks: {error}")
            else:
                predictions.append(compared)
                left_out += reasons
    return predictions, left_out


def _compared(
    cases: Sequence[Record], ranks: int, times: Times, estimate: NetworkEstimate, farthest: int | None
) -> tuple[Parallelism, list[str]]:
    """Return the parallelism of a training, of which ``cases`` are some meshes, and the meshes left out.

    ``farthest``: see :func:`hpcdl.prediction.steps.predicted_step`. ValueError: it cannot be predicted.
    """
    like, network = cases[0], estimate.network
    if ranks < 2:
        raise ValueError("there is nothing to split")
    if scheme_traits(like).adaptive:
        raise ValueError(f"{like.spec.aggregation.name} chooses its scheme by measurements at run time")
    base = replace(like.spec, ranks=ranks, compression=Choice("compression", NONE))
    work = times(like, base)
    batch = (like.batch_per_rank or 0) * ranks if like.scaling == "weak" else like.global_batch or 0
    link = network.link if network.host(ranks - 1) != network.host(0) else network.inside
    bucket = bucket_bytes(link.alpha, link.beta, ranks) if link.beta > 0 else None
    measured = _measured([record for record in cases if record.ranks == ranks])
    measured_of: dict[object, list[Record]] = defaultdict(list)
    for (mesh, microbatches), records in measured.items():
        measured_of[_program(with_mesh(base, mesh, work, microbatches))] += records
    rows, reasons, compared = list[Record](), list[str](), set[object]()
    others = [(mesh, 0) for mesh in candidates(ranks) if mesh.model == 1 or not base.table]
    for mesh, microbatches in dict.fromkeys((*measured, *others)):
        try:
            case = with_mesh(base, mesh, work)
            conditions = Conditions(network, work, _shared(batch, case.copies), bucket)
            if mesh.pipeline > 1:
                case = _fastest(base, mesh, microbatches, conditions)
            if (program := _program(case)) in compared:
                continue
            compared.add(program)
            here = measured_of[program]
            used = next((record.bucket_bytes for record in here if record.bucket_bytes), bucket)
            row = predicted_step(here, like, case, replace(conditions, bucket=used), estimate, farthest)
        except ValueError as error:
            reasons.append(f"{like.model}, mesh {label(mesh, ranks)}: {error}")
            continue
        row.parallelism = label(mesh, ranks, case.microbatches)
        row.case = here[0].case if here else None
        rows.append(row)
    if not rows:
        raise ValueError("no mesh fits")
    return Parallelism(splits(base.layers, base.shape, batch, ranks, link), rows), reasons


def _fastest(base: StepSpec, mesh: Mesh, microbatches: int, conditions: Conditions) -> Any:
    """Return the case of a pipeline with its fastest number of microbatches, or with those that are given."""
    counts = [microbatches] if microbatches else [1 << n for n in range(8) if 1 << n <= conditions.images]

    def alone(case: Any) -> float:
        """Return the time of one pipeline (s): they work alike, and sum equal gradients whatever the counts."""
        single = replace(case, ranks=case.stages, mesh=replace(case.mesh, data=1))
        return virtual_step(single.with_parts(case.parts), conditions).seconds

    return min((with_mesh(base, mesh, conditions.times, count) for count in counts), key=alone)


def _shared(batch: int, copies: int) -> int:
    """Return the images of each copy of the network. ValueError if the shares differ."""
    if batch % copies:
        raise ValueError(f"{batch} images are not divisible by {copies} copies of the network")
    return batch // copies


def _measured(records: Sequence[Record]) -> dict[tuple[Mesh, int], list[Record]]:
    """Return the measured cases that :func:`with_mesh` predicts, by their mesh and microbatches."""
    cases: dict[tuple[Mesh, int], list[Record]] = defaultdict(list)
    for record in records:
        spec, settings = record.spec, record.spec.training.in_full
        mesh = spec.mesh or Mesh(model=1)
        strategy = "synchronous" if mesh.pipeline == 1 else "pipeline"
        microbatches = {name: settings[name] for name in settings if name == "microbatches"}
        plain = settings == registry.in_full(registry.find("training", strategy), microbatches)
        unlike = spec.plan is not None or any((record.network, *unequal(record).values()))
        if record.step_seconds and not unlike and spec.training.name == strategy and plain:
            cases[mesh, settings.get("microbatches", 1)].append(record)
    return cases


def _program(case: Any) -> object:
    """Return a key that is equal for meshes with equal messages and equal work of each rank."""
    return (
        case.group_ranks,
        case.mesh.exchange if case.divisions else "",
        tuple((part.start, part.stop) for part in case.parts),
        case.microbatches,
        tuple(division.boundaries for division in case.divisions),
    )
