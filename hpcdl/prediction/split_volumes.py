"""Closed forms of the bytes that split layers exchange, and the cheapest split of each layer.

Gholami et al. 2018 (arXiv 1712.04432) give them for a grid of P_r x P_c ranks: P_r share a layer, P_c the batch.
The formulas of activations are those in the docstrings of :mod:`hpcdl.nn.split`. The gradient of a layer with all
weights on each of p ranks is summed in 2*(p - 1)*|W| bytes (ring; Patarasuk & Yuan 2009).
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hpcdl.aggregation.parts.cost import evaluate
from hpcdl.nn.layers.convolution import Convolution
from hpcdl.nn.layers.linear import Linear
from hpcdl.nn.layers.locally_connected import LocallyConnected
from hpcdl.nn.split import batch_norm, linear
from hpcdl.nn.split.layout import by_images, cut
from hpcdl.nn.split.spatial import convolution_by_filters, convolution_by_rows, locally_connected_by_rows
from hpcdl.nn.volumes import FLOAT_BYTES, Volumes, by_layer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hpcdl.fabric.network import Link
    from hpcdl.nn.geometry import Shape
    from hpcdl.nn.layer import Layer

DATA: Final = "data"
"""Split of the batch."""

SPLITTERS: Final[Mapping[type, Mapping[str, Callable[..., object]]]] = {
    Convolution: {"filters": convolution_by_filters, "space": convolution_by_rows},
    LocallyConnected: {"space": locally_connected_by_rows},
    Linear: {"outputs": linear.by_outputs, "inputs": linear.by_inputs},
}
"""Splits of each kind of layer besides that of the batch."""

SHARES_WEIGHTS: Final = (convolution_by_rows,)
"""Splits after which every rank has all weights, and gradients are summed too."""


@dataclass(frozen=True)
class LayerSplits:
    """Sizes of a layer, and the costs of its splits among some ranks."""

    name: str
    sizes: Volumes
    split_bytes: Mapping[str, int]
    """Bytes that all ranks send in a step, by split."""
    split_seconds: Mapping[str, float]
    """Time of these messages, by split."""

    @property
    def cheapest(self) -> str:
        """The split whose messages take the least time."""
        return min(self.split_seconds, key=self.split_seconds.__getitem__)


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
        return {**numbers, "d": layer.outputs if splitter is linear.by_inputs else shape[0]}
    numbers |= dict(zip("HWC", shape, strict=True))
    if splitter in {convolution_by_filters, batch_norm.by_positions}:
        return numbers
    takes = parts[0][0].takes  # type: ignore[index]
    owned = cut(shape, 1, ranks, layer=layer.name, noun="rows").ranges
    halo = 0
    for (low, high), (first, last) in zip(takes.ranges, owned, strict=True):
        begin, end = max(low, 0), min(high, shape[0])
        halo += end - begin - max(0, min(end, last) - max(begin, first))
    return {**numbers, "h": halo, **({"k": layer.kernel[0]} if isinstance(layer, Convolution) else {})}


def splits(layers: Sequence[Layer], shape: Shape, batch: int, ranks: int, link: Link) -> list[LayerSplits]:
    """Return the splits of each layer with weights among ``ranks`` ranks, for float32 and a ``batch`` of images.

    Times: a sum or an exchange of n bytes by all ranks takes n/p of the link's beta, and its rounds of alpha: 2*(p
    - 1) for a sum, 2*(p - 1) for gathering and scattering, 4 for halos to both sides and back.
    """
    given = {}
    for layer in layers:
        given[layer.name], shape_after = (layer, shape), layer.output(shape)
        shape = shape_after
    first_shape = next(iter(given.values()))[1]
    rows: list[LayerSplits] = []
    for name, _, sizes in by_layer(layers, first_shape, batch):
        layer, inputs = given[name]
        sums = 2 * (ranks - 1) * FLOAT_BYTES * sizes.parameters
        moved, rounds = {DATA: sums}, {DATA: 2 * (ranks - 1)}
        for split, splitter in SPLITTERS.get(type(layer), {}).items():
            try:
                numbers = variables(layer, inputs, splitter, batch, ranks)
            except ValueError:
                continue
            # every rank reads the images that it takes, and nothing needs their gradient
            is_first = not rows and splitter is not linear.by_inputs
            elements = 0 if is_first else sum(stated(splitter, way, numbers) for way in ("Forward", "Backward"))
            shared = splitter in SHARES_WEIGHTS
            moved[split] = FLOAT_BYTES * elements + (sums if shared else 0)
            halo = "h" in numbers
            moving = 0 if is_first else 4 if halo else 2 * (ranks - 1)
            rounds[split] = moving + (2 * (ranks - 1) if shared else 0)
        seconds = {split: rounds[split] * link.alpha + moved[split] / ranks * link.beta for split in moved}
        rows.append(LayerSplits(name, sizes, moved, seconds))
    return rows
