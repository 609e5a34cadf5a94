"""Parallelism of the training cases of a suite or a run: the splits of each layer, and the mesh to choose."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from hpcdl import registry
from hpcdl.cases.parts.architecture import architecture
from hpcdl.cases.parts.step_simulation import Training, virtual_step
from hpcdl.data.parts.dataset import DataError
from hpcdl.prediction.mesh_choice import candidates, closed_form_seconds, label, with_mesh
from hpcdl.prediction.programs import scheme_traits, spec_of
from hpcdl.prediction.split_volumes import splits
from hpcdl.prediction.steps import STEPPING
from hpcdl.training.parts.bucketing import bucket_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.analysis.scaling import Record
    from hpcdl.fabric.network import Network
    from hpcdl.prediction.split_volumes import LayerSplits
    from hpcdl.prediction.steps import Times

PROBLEM: Final = ("kind", "model", "dataset", "backend", "dtype", "aggregation")
"""Fields of cases that differ in their parallelism alone, besides the batch."""


@dataclass(frozen=True, slots=True)
class MeshTime:
    """Times of a step with one mesh (s)."""

    mesh: str
    closed_form_seconds: float
    predicted_seconds: float
    """Of the simulated programs."""
    step_seconds: float | None
    """Measured; None if the run has no such case."""


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
    meshes, reasons = [], []
    for mesh in candidates(ranks):
        name = label(mesh, ranks)
        try:
            training = with_mesh(base, mesh, work)
            images = batch // (ranks // training.group_ranks(ranks))
            stated = closed_form_seconds(training, ranks, images, network, work)
            predicted = virtual_step(training, ranks, images, network, work, bucket).seconds
        except ValueError as error:
            reasons.append(f"{like['model']}, mesh {name}: {error}")
            continue
        meshes.append(MeshTime(name, stated, predicted, _measured(here, name, ranks)))
    if not meshes:
        raise ValueError("no mesh fits")
    whole = splits(layers, shape, batch, ranks, link)
    dataset = str(like.get("dataset"))
    return Parallelism(str(like["model"]), dataset, batch, ranks, network.name, whole, meshes), reasons


def _measured(here: Sequence[Record], name: str, ranks: int) -> float | None:
    """Return the median measured step of the cases with the mesh; None without one."""
    found = [
        one["step_seconds"]
        for one in here
        if one.get("step_seconds") and not one.get("network") and label(spec_of(one).mesh, ranks) == name
    ]
    return median(found) if found else None
