"""Predicted parallelism: splits of each layer, and the times of a step with each mesh."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from hpcdl.prediction.predict import FAR
from hpcdl.report.formats.cells import digits, seconds
from hpcdl.report.formats.document import Section, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.analysis.run.scaling import Record
    from hpcdl.prediction.parallelism import Parallelism


NOTE: Final = (
    "Predicted: the programs of the steps in virtual time. A mesh is its split and data x model, or data x "
    "pipeline with the best number of microbatches among powers of two."
)
LAYERS: Final = ("layer", "|D| MB", "|W| MB", "GFLOP", "bytes/FLOP", "cheapest", "messages")
MESHES: Final = ("mesh", "predicted", "measured", "")


def section(parallelisms: Sequence[Parallelism]) -> Section:
    """Return the tables of each training and number of ranks."""
    tables, points = [], []
    for mesh in parallelisms:
        what = f"{mesh.model}, {mesh.global_batch} images, {mesh.ranks} ranks"
        points.append(
            f"{what}: choose {mesh.chosen.mesh}, {seconds(mesh.chosen.predicted_seconds)} a step.{_measured(mesh)}"
        )
        tables += [
            Table(f"Meshes: {what}", MESHES, _meshes(mesh)),
            Table(f"Layers: {what}", LAYERS, _layers(mesh)),
        ]
    return Section("Parallelism", [NOTE] if tables else [], points, tables)


def doubt(row: Record) -> str:
    """Return the marks of a prediction: far more ranks than measured, or an undetermined cost that decides."""
    beyond = row.get("times_the_measured_ranks")
    far = f"EXTRAPOLATED {digits(beyond)}x" if beyond and beyond > FAR else ""
    return "; ".join(filter(None, (far, "UNDETERMINED" if row.get("undetermined") else "")))


def records(parallelisms: Sequence[Parallelism]) -> list[dict[str, Any]]:
    """Return the JSON records; SI units."""
    return [
        {
            **{name: getattr(one, name) for name in ("model", "dataset", "global_batch", "ranks", "network")},
            "times_the_measured_ranks": one.times_the_measured_ranks,
            "chosen": one.chosen.mesh,
            "fastest_measured": one.best.mesh if one.best else None,
            "meshes": [{name: getattr(mesh, name) for name in mesh.__slots__} for mesh in one.meshes],
            "layers": [
                {
                    "name": layer.name,
                    "data_bytes": layer.sizes.data_bytes,
                    "weight_bytes": layer.sizes.weight_bytes,
                    "forward_backward_flop": layer.sizes.forward_backward_flop,
                    "cheapest": layer.cheapest,
                    "split_bytes": dict(layer.split_bytes),
                    "split_seconds": dict(layer.split_seconds),
                }
                for layer in one.layers
            ],
        }
        for one in parallelisms
    ]


def _measured(parallelism: Parallelism) -> str:
    """Return the fastest measured mesh beside the chosen one, in a sentence."""
    if parallelism.best is None:
        return ""
    chosen = parallelism.chosen.step_seconds
    also = f", the chosen one {seconds(chosen)}" if chosen and parallelism.best is not parallelism.chosen else ""
    missing = "" if chosen else "; the chosen one was not measured"
    best = parallelism.best
    return f" Measured: {best.mesh} is the fastest, {seconds(best.step_seconds)}{also}{missing}."


def _meshes(parallelism: Parallelism) -> list[tuple[str, ...]]:
    return [
        (
            mesh.mesh,
            seconds(mesh.predicted_seconds),
            seconds(mesh.step_seconds),
            "; ".join(
                word
                for word, holds in (
                    ("chosen", mesh is parallelism.chosen),
                    ("fastest measured", mesh is parallelism.best),
                    (
                        doubt({"times_the_measured_ranks": parallelism.times_the_measured_ranks, **asdict(mesh)}),
                        True,
                    ),
                )
                if holds and word
            ),
        )
        for mesh in parallelism.meshes
    ]


def _layers(parallelism: Parallelism) -> list[tuple[str, ...]]:
    return [
        (
            layer.name,
            digits(layer.sizes.data_bytes / 1e6),
            digits(layer.sizes.weight_bytes / 1e6),
            digits(layer.sizes.forward_backward_flop / 1e9),
            digits(layer.split_bytes[layer.cheapest] / max(1, layer.sizes.forward_backward_flop)),
            layer.cheapest,
            ", ".join(f"{split} {seconds(time)}" for split, time in layer.split_seconds.items()),
        )
        for layer in parallelism.layers
    ]
