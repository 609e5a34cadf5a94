"""What a network weighs: parameters, |W|, |D|, arithmetic and activations, from shapes alone.

|W| and |D| follow FireCaffe (Iandola et al. 2016, section 2 and table 1): a data-parallel step exchanges
|W| = the filters of all convolutions and fully connected layers, without biases; a model-parallel one exchanges
|D| = the inputs of those same layers, for the whole batch. An image that four layers read, as an inception module
does, counts four times; what ReLU, pooling, normalisation and concatenation read does not count. 4 bytes each.
Auxiliary classifiers are in |W|, being exchanged like all else, but neither in |D| nor in the arithmetic: so are
the paper's 54 MB, 19,100 MB and 9.7 TFLOP for GoogLeNet, whose classifiers would add 0.5 % to the latter two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hpcdl.nn.layers.auxiliary import Auxiliary
from hpcdl.nn.layers.concat import Concat
from hpcdl.nn.layers.convolution import Convolution
from hpcdl.nn.layers.flatten import Flatten
from hpcdl.nn.layers.residual import Residual

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hpcdl.nn.chain import Chain
    from hpcdl.nn.geometry import Shape
    from hpcdl.nn.layer import Layer

FLOAT_BYTES: Final = 4
"""Everything is counted in float32."""

PASSES: Final = 3
"""Forward, and two products of the same size in backward: gradients of the weights and of the inputs."""


@dataclass(frozen=True, slots=True)
class Volumes:
    """The weight of one training step of one network."""

    batch: int
    """Images."""
    parameters: int
    """All that is trained, biases and batch normalisation included."""
    multiply_adds_per_image: int
    """Of convolutions and fully connected layers, forward only, without auxiliary classifiers."""
    weight_bytes: int
    """|W|."""
    data_bytes: int
    """|D|, of the batch, without auxiliary classifiers."""
    forward_backward_flop: int
    """Of the batch, without auxiliary classifiers: a multiply-add is 2, and backward twice the forward."""
    activation_bytes: int
    """What the backward needs of the batch: the outputs of all layers, those of auxiliary classifiers too. A ReLU
    within a layer, Flatten and a residual block's sum need no memory of their own; the images and what a kernel
    may keep besides are not counted."""


def volumes(layers: Sequence[Layer], shape: Shape, batch: int) -> Volumes:
    """Weigh the network of ``layers`` on ``batch`` images of ``shape``.

    ValueError: a layer that cannot take the shape it gets.
    """
    parameters = weights = multiply_adds = inputs = activations = 0
    for layer, seen, aside in _walk(layers, shape):
        output = layer.output(seen)
        if not isinstance(layer, (Auxiliary, Flatten, Residual)):
            activations += math.prod(output)
        if _within(layer):
            continue
        for variable in layer.declare(seen):
            size = math.prod(variable.shape)
            parameters += size if variable.trained else 0
            if variable.name == "weight":
                weights += size
                if not aside:
                    inputs += math.prod(seen)
                    multiply_adds += size * (math.prod(output[:2]) if isinstance(layer, Convolution) else 1)
    return Volumes(
        batch=batch,
        parameters=parameters,
        multiply_adds_per_image=multiply_adds,
        weight_bytes=FLOAT_BYTES * weights,
        data_bytes=FLOAT_BYTES * inputs * batch,
        forward_backward_flop=PASSES * 2 * multiply_adds * batch,
        activation_bytes=FLOAT_BYTES * activations * batch,
    )


def _walk(layers: Sequence[Layer], shape: Shape, *, aside: bool = False) -> Iterator[tuple[Layer, Shape, bool]]:
    """Yield every layer, those within layers too, the shape it sees, and if it is an auxiliary classifier's."""
    for layer in layers:
        for branch in _within(layer):
            yield from _walk(branch.layers, shape, aside=aside or isinstance(layer, Auxiliary))
        yield layer, shape, aside
        shape = layer.output(shape)


def _within(layer: Layer) -> tuple[Chain, ...]:
    """Return the branches of a layer that is made of others."""
    if isinstance(layer, Concat):
        return layer.branches
    if isinstance(layer, Residual):
        return layer.branch, layer.shortcut
    if isinstance(layer, Auxiliary):
        return (layer.head,)
    return ()
