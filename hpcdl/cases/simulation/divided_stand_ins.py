"""Stand-ins for the split layers of a model group: activations of the right sizes, and no arithmetic."""

from __future__ import annotations

import math
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcdl.cases.simulation.stand_in_stages import Divided, Marks, Outline, Stage
from hpcdl.cases.simulation.stand_ins import Held, Replica
from hpcdl.fabric.vectors import phantom

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hpcdl.fabric.comm import Array
    from hpcdl.nn.geometry import Shape
    from hpcdl.nn.split.division import Division
    from hpcdl.training.parts.mesh import Place


class Zeros:
    """Arrays of zeros that share one memory, of the longest so far."""

    def __init__(self) -> None:
        self._memory = np.zeros(0, np.float32)

    def __call__(self, shape: Shape) -> Array:
        """Return an array of ``shape``, which must not be written to."""
        if (size := math.prod(shape)) > self._memory.size:
            self._memory = np.zeros(size, np.float32)
        return self._memory[:size].reshape(shape)


def divided_replica(
    division: Division, place: Place, rank: int, ranks: int, *, summed: bool
) -> tuple[Replica, list[Marks]]:
    """Return a stand-in for the parts of ``division``, and the marks of whole layers and of divided ones.

    ``rank`` of ``ranks`` is the place among all ranks, which sum the gradients of whole layers.
    """
    spans = _spans(division)
    gradients, zeros = np.zeros(spans[-1].stop, np.float32), Zeros()
    whole = Marks(gradients, rank, ranks, summed)
    divided = Marks(gradients, place.group, place.data.size, summed)
    stages = [
        Stage(part.name, span, divided if part.cuts else whole)
        for part, span in zip(division.parts, spans, strict=True)
    ]
    return Replica(_divided(stages, division, zeros), gradients, _held(division, spans)), [whole, divided]


def divided_outline(division: Division, dtype: str) -> Replica:
    """Return a stand-in of sizes only; its vectors take no memory."""
    spans = _spans(division)

    def zeros(shape: Shape) -> Array:
        return phantom(math.prod(shape), dtype).reshape(shape)

    stages = [Outline(part.name, span) for part, span in zip(division.parts, spans, strict=True)]
    vector = phantom(spans[-1].stop, dtype)
    return Replica(_divided(stages, division, zeros), vector, _held(division, spans), vector)


def _divided(
    stages: Sequence[Stage | Outline], division: Division, zeros: Callable[[Shape], Array]
) -> list[Divided]:
    found: list[Divided] = []
    for stage, part, shape in zip(stages, division.parts, division.shapes, strict=True):
        found.append(Divided(stage, part, shape, zeros, found[-1] if found else None))
    return found


def _spans(division: Division) -> list[slice]:
    sizes: list[int] = []
    for part, shape in zip(division.parts, division.shapes, strict=True):
        declared: Any = part.layer.declare(shape)
        sizes.append(sum(math.prod(one.shape) for one in declared if one.trained))
    return [slice(low, high) for low, high in pairwise(accumulate(sizes, initial=0))]


def _held(division: Division, spans: list[slice]) -> Held:
    names = tuple(part.name for part in division.parts)
    return Held(names, tuple(spans), True, True, division.shapes[0], division.output)
