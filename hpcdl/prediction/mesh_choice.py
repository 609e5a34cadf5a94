"""Meshes to choose from: every split of some ranks, its label, and the training with it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from hpcdl import registry
from hpcdl.cases.parts.stage_balance import balanced
from hpcdl.training.parts.mesh import Mesh

if TYPE_CHECKING:
    from hpcdl.cases.parts.compute_times import ComputeTimes
    from hpcdl.cases.parts.step_simulation import Training

MICROBATCHES: Final = 4
"""Microbatches of a candidate pipeline: the default of ``pipeline``."""

WAYS: Final = (("model", "outputs"), ("space", "outputs"), ("hybrid", "outputs"), ("hybrid", "inputs"))
"""Splits of a candidate mesh: of layers of images, and of fully connected layers."""


def candidates(ranks: int) -> list[Mesh]:
    """Return the meshes of ``ranks`` ranks: data parallelism alone, and each split on each grid; pipelines."""
    sizes = [size for size in range(2, ranks + 1) if ranks % size == 0]
    split = [
        Mesh(data=ranks // size, model=size, split=way, linear=linear) for size in sizes for way, linear in WAYS
    ]
    return [Mesh(model=1), *split, *(Mesh(pipeline=size) for size in sizes)]


def label(mesh: Mesh | None, ranks: int) -> str:
    """Return the name of a mesh on ``ranks`` ranks, equal for equal meshes: ``hybrid outputs 2x4``, data first."""
    groups, size = (ranks, 1) if mesh is None else mesh.groups(ranks)
    if mesh is not None and mesh.pipeline > 1:
        return f"pipeline {groups}x{mesh.pipeline}"
    if mesh is None or size == 1:
        return "data"
    exchange = "" if mesh.exchange == "all" else f" {mesh.exchange}"
    return f"{mesh.split} {mesh.linear}{exchange} {groups}x{size}"


def with_mesh(training: Training, mesh: Mesh, times: ComputeTimes) -> Training:
    """Return the training with another mesh; a pipeline's stages are balanced by ``times``."""
    if mesh.pipeline == 1:
        return replace(training, mesh=mesh, parts=(slice(None),))
    parts = balanced(training.layers, training.shape, mesh.pipeline, times)
    strategy = partial(registry.find("training", "pipeline"), microbatches=MICROBATCHES)
    return replace(training, mesh=mesh, parts=parts, strategy=strategy)
