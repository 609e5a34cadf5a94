"""Parallelism of the training cases of a suite or a run: the splits of each layer, and the mesh to choose."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from hpcdl import registry
from hpcdl.cases.parts.architecture import architecture
from hpcdl.cases.parts.compute_times import TIMES
from hpcdl.cases.parts.step_simulation import Training, virtual_step
from hpcdl.data.parts.dataset import DataError
from hpcdl.prediction.mesh_choice import candidates, label, with_mesh
from hpcdl.prediction.programs import scheme_traits, spec_of
from hpcdl.prediction.split_volumes import splits
from hpcdl.prediction.step_formulas import closed_form_seconds
from hpcdl.prediction.steps import STEPPING, UNEQUAL
from hpcdl.training.parts.bucketing import bucket_bytes
from hpcdl.training.parts.mesh import Mesh

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.analysis.scaling import Record
    from hpcdl.fabric.network import Network
    from hpcdl.prediction.split_volumes import LayerSplits
    from hpcdl.prediction.steps import Times

PROBLEM: Final = ("kind", "model", "dataset", "backend", "dtype", "aggregation", *TIMES, "time_scale")
"""Fields of cases that differ in their parallelism alone, besides the batch."""


@dataclass(frozen=True, slots=True)
class MeshTime:
    """Times of a step with one mesh (s)."""

    mesh: str
    closed_form_seconds: float
    predicted_seconds: float
    """Of the simulated programs."""
    step_seconds: float | None = None
    """Measured; None if the run has no such case."""
    case: str | None = None
    """Name of the measured case."""


@dataclass(frozen=True)
class Parallelism:
    """Meshes and layers of one training on some ranks."""

    model: str
    dataset: str
    global_batch: int
    ranks: int
    network: str
    layers: Sequence[LayerSplits]
    meshes: Sequence[MeshTime]

    @property
    def chosen(self) -> MeshTime:
        """The mesh with the shortest step by the closed forms."""
        return min(self.meshes, key=lambda one: one.closed_form_seconds)

    @property
    def fastest(self) -> MeshTime:
        """The mesh with the shortest simulated step."""
        return min(self.meshes, key=lambda one: one.predicted_seconds)

    @property
    def best(self) -> MeshTime | None:
        """The mesh with the shortest measured step; None if none was measured."""
        return min(
            (one for one in self.meshes if one.step_seconds is not None),
            key=lambda one: one.step_seconds or 0.0,
            default=None,
        )


def parallelism(
    records: Sequence[Record], times: Times, network: Network, ranks: Sequence[int] = ()
) -> tuple[list[Parallelism], list[str]]:
    """Return the parallelism of each training among ``records`` on each number of ``ranks``, by default its own.

    The second list has the cases and meshes left out, with reasons. Cases that differ in mesh and ranks only are
    one training. Weakly scaled ones keep the images per rank.
    """
    found: list[Parallelism] = []
    left_out: list[str] = []
    problems: dict[Any, list[Record]] = {}
    for record in records:
        if record["kind"] in STEPPING:
            weak = record.get("scaling") == "weak"
            batch = record.get("batch_per_rank" if weak else "global_batch")
            problems.setdefault((*map(record.get, PROBLEM), weak, batch), []).append(record)
    for alike in problems.values():
        for p in ranks or sorted({int(one["ranks"]) for one in alike if one["ranks"] > 1}):
            here = [one for one in alike if one["ranks"] == p]
            try:
                one, reasons = _of(alike[0], here, p, times, network)
            except (ValueError, TypeError, DataError, OSError) as error:
                left_out.append(f"{alike[0]['model']} on {p} ranks: {error}")
                continue
            left_out += reasons
            found.append(one)
    return found, left_out


def _of(
    like: Record, here: Sequence[Record], ranks: int, times: Times, network: Network
) -> tuple[Parallelism, list[str]]:
    if ranks < 2:
        raise ValueError("there is nothing to split")
    spec = spec_of(like)
    if scheme_traits(like).adaptive:
        raise ValueError(f"{spec.aggregation.name} chooses its scheme by measurements at run time")
    shape, layers = architecture(spec.model, spec.dataset)
    base = Training(
        registry.find("training", "synchronous"), spec.aggregation.bind(), layers, shape, str(like["dtype"])
    )
    work = times(like, ranks, layers, shape)
    weak = like.get("scaling") == "weak"
    batch = int(like["batch_per_rank"]) * ranks if weak else int(like["global_batch"])
    link = network.link if network.host(ranks - 1) != network.host(0) else network.inside
    bucket = bucket_bytes(link.alpha, link.beta, ranks) if link.beta > 0 else None
    measured = _measured(here)
    meshes, reasons = [], []
    known: set[Any] = set()
    given = [one.mesh for one in measured]
    for mesh in {label(one, ranks): one for one in (*given, *candidates(ranks))}.values():
        name = label(mesh, ranks)
        try:
            training = with_mesh(base, mesh, work)
            if (program := _program(training, ranks)) in known:
                continue
            known.add(program)
            images = _shared(batch, ranks // training.group_ranks(ranks))
            cases = [one for one in measured if _program(with_mesh(base, one.mesh, work), ranks) == program]
            buckets = next((one.bucket_bytes for one in cases if one.bucket_bytes), bucket)
            stated = closed_form_seconds(training, ranks, images, network, work, buckets)
            predicted = virtual_step(training, ranks, images, network, work, buckets).seconds
        except ValueError as error:
            reasons.append(f"{like['model']}, mesh {name}: {error}")
            continue
        took = median(one.step_seconds for one in cases) if cases else None
        meshes.append(MeshTime(name, stated, predicted, took, cases[0].case if cases else None))
    if not meshes:
        raise ValueError("no mesh fits")
    whole = splits(layers, shape, batch, ranks, link)
    dataset = str(like.get("dataset"))
    return Parallelism(str(like["model"]), dataset, batch, ranks, network.name, whole, meshes), reasons


def _shared(batch: int, copies: int) -> int:
    """Return the images of each copy of the network. ValueError if the shares differ."""
    images, rest = divmod(batch, copies)
    if rest:
        raise ValueError(f"{batch} images are not divisible by {copies} copies of the network")
    return images


@dataclass(frozen=True, slots=True)
class _Measured:
    """Measured steps of a case whose program is that of its mesh here."""

    mesh: Mesh
    step_seconds: float
    case: str
    bucket_bytes: int | None


def _measured(here: Sequence[Record]) -> list[_Measured]:
    """Return the measured cases that :func:`hpcdl.prediction.mesh_choice.with_mesh` predicts."""
    found = []
    for one in here:
        spec = spec_of(one)
        mesh = spec.mesh or Mesh(model=1)
        strategy = "synchronous" if mesh.pipeline == 1 else "pipeline"
        plain = spec.training.in_full == registry.in_full(registry.find("training", strategy), {})
        unlike = spec.plan is not None or any(one.get(key) for key in ("network", *UNEQUAL))
        if not one.get("step_seconds") or unlike or spec.training.name != strategy or not plain:
            continue
        found.append(_Measured(mesh, one["step_seconds"], str(one.get("case")), one.get("bucket_bytes")))
    return found


def _program(training: Training, ranks: int) -> object:
    """Return a key that is equal for meshes with equal messages and equal work of each rank."""
    divisions = training.divisions(ranks)
    exchange = training.mesh.exchange if training.mesh and divisions else ""
    stages = tuple((one.start, one.stop) for one in training.parts)
    return training.group_ranks(ranks), exchange, stages, tuple(one.boundaries for one in divisions)
