"""Division of a network's layers into the stages of a pipeline, balanced by their times."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

from hpcdl.cases.spec.compute_times import at_rate
from hpcdl.cases.spec.scheme import traits_of
from hpcdl.training.parts.pipeline.partition import partition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.cases.spec.choice import Choice
    from hpcdl.cases.spec.compute_times import ComputeTimes
    from hpcdl.nn.geometry import Shape
    from hpcdl.nn.layer import Layer
    from hpcdl.training.parts.traits import Strategy


def balanced(
    layers: Sequence[Layer], shape: Shape, stages: int, times: ComputeTimes | None = None
) -> tuple[slice, ...]:
    """Return the layers of each stage; ``times`` are those of layers, by default in proportion to multiply-adds.

    ValueError: more stages than layers, or a layer without a time.
    """
    if stages == 1:
        return (slice(0, len(layers)),)
    of = times or at_rate(layers, shape, 1.0)
    seconds = [of.seconds(f"forward {one.name}", 1) + of.seconds(f"backward {one.name}", 1) for one in layers]
    outputs = []
    for layer in layers:
        shape = layer.output(shape)
        outputs.append(math.prod(shape))
    return partition(seconds, stages, outputs)


class Divided(Protocol):
    """Case whose strategy may divide the layers."""

    @property
    def model(self) -> Choice:
        """The network."""
        ...

    @property
    def aggregation(self) -> Choice:
        """Scheme that sums gradients."""
        ...

    @property
    def training(self) -> Choice:
        """The strategy."""
        ...

    @property
    def strategy(self) -> Strategy:
        """Its traits."""
        ...

    @property
    def stages(self) -> int:
        """Ranks among which the layers are divided."""
        ...


def check_microbatches(spec: Divided, images: int) -> None:
    """Raise ValueError if the ``images`` of a worker's batch are too few for the microbatches of the strategy."""
    microbatches = spec.strategy.microbatches(spec.training.in_full)
    if microbatches > images:
        raise ValueError(f"microbatches: must be at most {images}, the images of a batch, not {microbatches}")


def check_stages(spec: Divided, layers: int) -> None:
    """Raise ValueError if ``layers`` are too few for the stages, or if the aggregation cannot sum over stages."""
    if spec.stages > layers:
        raise ValueError(f"{spec.model} has {layers} layers, too few for {spec.stages} stages")
    if spec.stages > 1 and traits_of(spec.aggregation).adaptive:
        raise ValueError(f"{spec.aggregation.name!r} measures sums over all ranks; name another scheme")
