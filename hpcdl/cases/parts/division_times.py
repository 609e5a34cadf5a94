"""Times of the split layers of a model group: each rank's share of the measured or modelled time of a layer."""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

from hpcdl.cases.parts.compute_times import ComputeTimes
from hpcdl.data.parts.sharding import bounds
from hpcdl.fabric.comm import INPUT
from hpcdl.nn.volumes import by_layer, volumes
from hpcdl.training.parts.passes import EXCHANGES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpcdl.nn.layer import Layer
    from hpcdl.nn.split.division import Division


def times_of_ranks(
    whole: ComputeTimes, layers: Sequence[Layer], divisions: Sequence[Division], images: int, exchange: str
) -> tuple[ComputeTimes, ...]:
    """Return the times of each rank of a model group, per image of the group's batch of ``images``.

    ``whole`` are the times of all ``layers``, with updates (:meth:`ComputeTimes.of_network`). The ranks' parts of
    a layer share its time by their multiply-adds, or by their outputs if the layer has none. A data-parallel part
    counts with the rank's own images. With ``exchange`` in passes, split layers work once per pass, on an equal
    part of the images.
    """
    shares = [(high - low) / images for low, high in pairwise(bounds(images, len(divisions)))]
    passes = 1 if EXCHANGES[exchange] is None else len(divisions)
    weights = _weights(divisions, shares)
    parameters = {
        name: sizes.parameters for name, _, sizes in by_layer(layers, divisions[0].parts[0].takes.shape, 1)
    }
    return tuple(
        _of_rank(whole, parameters, division, factors, share, passes)
        for division, factors, share in zip(divisions, weights, shares, strict=True)
    )


def _of_rank(
    whole: ComputeTimes,
    parameters: Mapping[str, int],
    division: Division,
    factors: Sequence[float],
    share: float,
    passes: int,
) -> ComputeTimes:
    known, calls = whole.per_image, whole.per_call
    first = division.parts[0]
    reads = share if first.takes.by_images else math.prod(division.shapes[0]) / math.prod(first.takes.shape)
    loss = known.get("loss", 0.0) * share / (passes if division.passes_end == len(division.parts) else 1)
    found = {INPUT: known.get(INPUT, 0.0) * reads, "loss": loss}
    updates = {}
    for number, (part, shape, name) in enumerate(
        zip(division.parts, division.shapes, division.layers, strict=True)
    ):
        factor = factors[number] / (passes if division.first_split <= number < division.passes_end else 1)
        for direction in ("forward", "backward"):
            found[f"{direction} {part.name}"] = known.get(f"{direction} {name}", 0.0) * factor
        own = volumes([part.layer], shape, 1).parameters
        updates[f"update {part.name}"] = calls.get(f"update {name}", 0.0) * own / parameters.get(name, 1)
    everything = max(1, sum(parameters.values()))
    updates["update"] = calls.get("update", 0.0) * division.parameters / everything
    return ComputeTimes(found, {**calls, **updates}, whole.source)


def _weights(divisions: Sequence[Division], shares: Sequence[float]) -> list[list[float]]:
    """Return each rank's parts' shares of the time of the layers that they belong to."""
    work: list[list[tuple[str, float, float]]] = []
    multiply_adds, outputs = defaultdict[str, float](float), defaultdict[str, float](float)
    for division, share in zip(divisions, shares, strict=True):
        work.append([])
        for part, shape, name in zip(division.parts, division.shapes, division.layers, strict=True):
            images = share if part.takes.by_images else 1.0
            products = images * volumes([part.layer], shape, 1).multiply_adds_per_image
            elements = images * math.prod(part.output(shape))
            multiply_adds[name] += products
            outputs[name] += elements
            work[-1].append((name, products, elements))
    return [
        [
            products / multiply_adds[name] if multiply_adds[name] else elements / outputs[name]
            for name, products, elements in one
        ]
        for one in work
    ]
