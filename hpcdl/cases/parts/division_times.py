"""Times of the split layers of a model group: each rank's share of the measured or modelled time of a layer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hpcdl.cases.parts.compute_times import ComputeTimes
from hpcdl.data.parts.sharding import bounds
from hpcdl.fabric.comm import INPUT
from hpcdl.nn.volumes import volumes
from hpcdl.training.parts.passes import EXCHANGES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.nn.layer import Layer
    from hpcdl.nn.split.division import Division
    from hpcdl.nn.split.part import Part


def times_of_ranks(
    whole: ComputeTimes, layers: Sequence[Layer], divisions: Sequence[Division], images: int, exchange: str
) -> tuple[ComputeTimes, ...]:
    """Return the times of each rank of a model group, per image of the group's batch of ``images``.

    ``whole`` are the times of all ``layers``, with updates (:meth:`ComputeTimes.of_network`). A data-parallel
    layer takes the time of the rank's own images. A split layer takes the part of the time that is its part of the
    multiply-adds, or of the outputs if the layer has none. With ``exchange`` in passes, split layers work once per
    pass, on an equal part of the images.
    """
    ends, ranks = bounds(images, len(divisions)), len(divisions)
    passes = 1 if EXCHANGES[exchange] is None else ranks
    return tuple(
        _of_rank(whole, layers, division, (ends[rank + 1] - ends[rank]) / images, passes)
        for rank, division in enumerate(divisions)
    )


def _of_rank(
    whole: ComputeTimes, layers: Sequence[Layer], division: Division, share: float, passes: int
) -> ComputeTimes:
    known, calls = whole.per_image, whole.per_call
    parameters, multiply_adds, outputs = _sizes(layers, division)
    loss = share / passes
    reads = share if division.parts[0].takes.by_images else _share(division, 0)
    found = {INPUT: known.get(INPUT, 0.0) * reads, "loss": known.get("loss", 0.0) * loss}
    updates = {}
    for number, (part, shape) in enumerate(zip(division.parts, division.shapes, strict=True)):
        own, name = volumes([part.layer], shape, 1), part.of or part.name
        if part.takes.by_images:
            factor = share
        elif part.of:  # the product has the time of the whole layer
            factor = 0.0
        elif multiply_adds[name]:
            factor = own.multiply_adds_per_image / multiply_adds[name]
        else:
            factor = math.prod(part.output(shape)) / outputs[name]
        if number >= division.first_split:
            factor /= passes
        for direction in ("forward", "backward"):
            found[f"{direction} {part.name}"] = known.get(f"{direction} {name}", 0.0) * factor
        update = calls.get(f"update {name}", 0.0)
        updates[f"update {part.name}"] = update * own.parameters / max(1, parameters[name])
    everything = max(1, sum(parameters.values()))
    updates["update"] = calls.get("update", 0.0) * division.parameters / everything
    return ComputeTimes(found, {**calls, **updates}, whole.source)


def _sizes(layers: Sequence[Layer], division: Division) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    """Return the parameters, the multiply-adds and the outputs of the whole layers, by name."""
    parameters, multiply_adds, outputs = {}, {}, {}
    shape = division.parts[0].takes.shape
    for layer in layers:
        sizes = volumes([layer], shape, 1)
        shape = layer.output(shape)
        parameters[layer.name], multiply_adds[layer.name] = sizes.parameters, sizes.multiply_adds_per_image
        outputs[layer.name] = math.prod(shape)
    return parameters, multiply_adds, outputs


def _share(division: Division, number: int) -> float:
    """Return the part of an image that a part takes."""
    part: Part = division.parts[number]
    return math.prod(division.shapes[number]) / math.prod(part.takes.shape)
