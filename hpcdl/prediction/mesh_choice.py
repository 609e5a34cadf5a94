"""Meshes to choose from: every split of some ranks, its label, and the training with it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Final

from hpcdl import registry
from hpcdl.cases.simulation.stage_balance import balanced
from hpcdl.nn.split.division import LINEAR
from hpcdl.training.parts.mesh import Mesh
from hpcdl.training.parts.passes import EXCHANGES

if TYPE_CHECKING:
    from hpcdl.cases.simulation.step_simulation import Training
    from hpcdl.cases.spec.compute_times import ComputeTimes

COUNTS: Final = tuple(1 << power for power in range(8))
"""Numbers of microbatches of a candidate pipeline."""

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


def label(mesh: Mesh | None, ranks: int, microbatches: int = 1) -> str:
    """Return the name of a mesh on ``ranks`` ranks, equal for equal meshes: ``hybrid outputs 2x4``, data first."""
    groups, size = (ranks, 1) if mesh is None else mesh.groups(ranks)
    if mesh is not None and mesh.pipeline > 1:
        return f"pipeline {groups}x{mesh.pipeline}" + (f" in {microbatches} parts" if microbatches > 1 else "")
    if mesh is None or size == 1:
        return "data"
    exchange = "" if mesh.exchange == "all" else f" {mesh.exchange}"
    return f"{mesh.split} {mesh.linear}{exchange} {groups}x{size}"


def with_mesh(training: Training, mesh: Mesh, times: ComputeTimes) -> Training:
    """Return the training with another mesh; a pipeline's stages are balanced by ``times``, its batch is whole."""
    if mesh.pipeline == 1:
        return replace(training, mesh=mesh, parts=(slice(None),))
    parts = balanced(training.layers, training.shape, mesh.pipeline, times)
    return with_microbatches(replace(training, mesh=mesh, parts=parts), 1)


def with_microbatches(training: Training, microbatches: int) -> Training:
    """Return the training of a pipeline with another number of microbatches."""
    strategy = partial(registry.find("training", "pipeline"), microbatches=microbatches)
    return replace(training, microbatches=microbatches, strategy=strategy)
