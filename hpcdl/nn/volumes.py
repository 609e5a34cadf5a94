"""Sizes of a network computed from its shapes: parameters, |W|, |D|, arithmetic and activations.

|W| and |D| follow FireCaffe (Iandola et al. 2016, section 2 and table 1). A data-parallel step exchanges |W|: the
weights of all convolutions and fully connected layers, without biases. A model-parallel step exchanges |D|: the
inputs of those layers, for the whole batch; an image that four layers read counts four times. Each number takes 4
bytes. Auxiliary classifiers count in |W|, because they are exchanged, but not in |D| or the arithmetic. This gives
the paper's 54 MB, 19,100 MB and 9.7 TFLOP for GoogLeNet. Of a table's layers all parameters count as weights.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from hpcdl.nn.composite import Auxiliary, Residual
from hpcdl.nn.geometry import Shape
from hpcdl.nn.layer import Layer, SizedLayer
from hpcdl.nn.layers import Convolution, Flatten

FLOAT_BYTES: Final = 4
"""All sizes assume float32."""
PASSES: Final = 3
"""One forward product and two backward products of equal size: gradients of the weights and of the inputs."""


@dataclass(frozen=True, slots=True)
class Volumes:
    """Sizes of one training step of one network."""

    batch: int
    """Number of images."""
    parameters: int
    """Number of trained parameters, including biases and batch normalisation."""
    multiply_adds_per_image: int
    """Forward only, convolutions and fully connected layers, without auxiliary classifiers."""
    weight_bytes: int
    """|W|."""
    data_bytes: int
    """|D| of the batch, without auxiliary classifiers."""
    forward_backward_flop: int
    """FLOP of the batch, without auxiliary classifiers: a multiply-add is 2, backward is twice the forward."""
    activation_bytes: int
    """Outputs of all layers for the batch, including auxiliary classifiers; of a table, those of its rows. A ReLU
    within a layer, Flatten and the sum of a residual block need no memory of their own. Images and workspaces of
    kernels do not count."""


def volumes(layers: Sequence[Layer], shape: Shape, batch: int) -> Volumes:
    """Return the sizes of the network of ``layers`` for ``batch`` images of ``shape``.

    ValueError: a layer that does not accept its input shape.
    """
    parameters = weights = multiply_adds = inputs = activations = 0
    for layer, input_shape, auxiliary in _walk(layers, shape):
        output = layer.output(input_shape)
        if not isinstance(layer, (Auxiliary, Flatten, Residual)):
            activations += math.prod(output)
        if getattr(layer, "chains", ()):
            continue
        if isinstance(layer, SizedLayer):
            weights += layer.parameters
            inputs += math.prod(input_shape) if layer.parameters else 0
            multiply_adds += ((layer.forward_flop or 0) + (layer.backward_flop or 0)) // (2 * PASSES)
        for variable in layer.declare(input_shape):
            size = math.prod(variable.shape)
            parameters += size if variable.trained else 0
            if variable.name == "weight":
                weights += size
                if not auxiliary:
                    inputs += math.prod(input_shape)
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


def by_layer(layers: Sequence[Layer], shape: Shape, batch: int) -> list[tuple[str, Shape, Volumes]]:
    """Return the name, the output shape and the sizes of each layer with parameters, in order.

    A layer with branches is one entry. The sizes add up to those of :func:`volumes`, except the activations.
    """
    sizes_of_layers = []
    for layer in layers:
        sizes, output = volumes([layer], shape, batch), layer.output(shape)
        if sizes.parameters:
            sizes_of_layers.append((layer.name, output, sizes))
        shape = output
    return sizes_of_layers


def _walk(
    layers: Sequence[Layer], shape: Shape, *, auxiliary: bool = False
) -> Iterator[tuple[Layer, Shape, bool]]:
    """Yield every layer, nested ones too, with its input shape; True if it is in an auxiliary classifier."""
    for layer in layers:
        for branch in getattr(layer, "chains", ()):
            yield from _walk(branch.layers, shape, auxiliary=auxiliary or isinstance(layer, Auxiliary))
        yield layer, shape, auxiliary
        shape = layer.output(shape)
