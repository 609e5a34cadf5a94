"""One launch of one case, reduced over its ranks: the first thing that is done to a trace."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hpcdl.analysis.statistics import Vector, slowest

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd

    from hpcdl.trace.run import Run

Columns = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Launch:
    """Vectors hold one entry per measured step (warm-up is left out), in the order of the steps."""

    fields: Mapping[str, Any]
    seconds: Vector
    """Of the slowest rank."""
    compute_seconds: Vector
    """Of the rank that computed longest; 0 where it was not measured."""
    mean_compute_seconds: Vector
    """Mean over ranks, what perfect balance would give."""
    input_seconds: Vector
    """Of the rank that waited longest for its images; 0 where it was not measured."""
    bytes_sent: Vector
    """By the rank that sent most."""
    messages: Vector
    """Of the rank that sent most of them."""
    images: Vector
    """All ranks together."""
    total_steps: int
    warmup_steps: int
    ranks_recorded: int
    last_loss: float | None
    """Mean over the images of the last step."""
    evaluations: Columns
    """Those of the lowest rank that has any."""


def warmup_of(fields: Mapping[str, Any]) -> int:
    """Leading steps to leave out: ``warmup_steps`` or ``warmup``, else 2 for training, else 0."""
    given = fields.get("warmup_steps", fields.get("warmup"))
    if given is None:
        return 2 if fields.get("kind", "train") == "train" else 0
    return int(given)


def launches(run: Run) -> list[Launch]:
    """All cases of a run, in its order, each reduced over ranks."""
    steps, evaluations = _by_case(run.steps), _by_case(run.evaluations)
    return [
        _reduce(fields, steps.get(index, {}), evaluations.get(index, {}))
        for index, fields in enumerate(run.described)
    ]


def _by_case(frame: pd.DataFrame) -> dict[int, Columns]:
    columns = {str(name): frame[name].to_numpy() for name in frame.columns}
    place = columns.pop("case_index")
    cuts = np.flatnonzero(np.diff(place)) + 1  # rows of one case stand together
    bounds = [0, *cuts.tolist(), len(place)] if len(place) else []
    return {
        int(place[begin]): {name: column[begin:end] for name, column in columns.items()}
        for begin, end in itertools.pairwise(bounds)
    }


def _reduce(fields: Mapping[str, Any], steps: Columns, evaluations: Columns) -> Launch:
    warmup = warmup_of(fields)
    if evaluations:
        first = evaluations["rank"] == evaluations["rank"].min()
        evaluations = {name: column[first] for name, column in evaluations.items()}
    if not steps or fields.get("error"):  # what broke half-way has no step time
        none = np.empty(0)
        return Launch(fields, none, none, none, none, none, none, none, 0, warmup, 0, None, {})
    measured = {name: column[steps["step"] >= warmup] for name, column in steps.items()}
    number = measured["step"]
    _, seconds = slowest(number, (measured["end"] - measured["begin"]) / 1e9)
    _, place, count = np.unique(number, return_inverse=True, return_counts=True)
    computed = measured["compute_ns"] / 1e9
    return Launch(
        fields,
        seconds=seconds,
        compute_seconds=slowest(number, computed)[1],
        mean_compute_seconds=np.bincount(place, computed, len(count)) / count,
        input_seconds=slowest(number, measured["input_ns"] / 1e9)[1],
        bytes_sent=slowest(number, measured["bytes"])[1],
        messages=slowest(number, measured["messages"])[1],
        images=np.bincount(place, measured["images"], len(count)).astype(np.float64),
        total_steps=len(np.unique(steps["step"])),
        warmup_steps=warmup,
        ranks_recorded=len(np.unique(steps["rank"])),
        last_loss=_last_loss(steps),
        evaluations=evaluations,
    )


def _last_loss(steps: Columns) -> float | None:
    last = (steps["step"] == steps["step"].max()) & (steps["images"] > 0)
    if not last.any():
        return None
    return float(np.average(steps["loss"][last], weights=steps["images"][last]))
