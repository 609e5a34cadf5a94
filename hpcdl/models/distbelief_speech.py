"""DistBelief's speech network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdl.nn.layers.flatten import Flatten
from hpcdl.nn.layers.linear import Linear
from hpcdl.nn.layers.sigmoid import Sigmoid

if TYPE_CHECKING:
    from hpcdl.nn.geometry import Shape
    from hpcdl.nn.layer import Layer


def distbelief_speech(shape: Shape = (11, 40, 1), classes: int = 8192) -> list[Layer]:  # noqa: ARG001
    """DistBelief's speech network: four fully connected layers of 2560 sigmoids, 8192 acoustic states.

    Dean et al. 2012, section 5: an input is 11 frames of speech with 40 log-energies each; 41,777,152 parameters.
    The paper does not specify initial weights; here they are Caffe's ``xavier``. Images of any shape are
    flattened.
    """
    layers: list[Layer] = [Flatten("flatten")]
    for i in range(1, 5):
        layers += [Linear(f"fc{i}", 2560), Sigmoid(f"sigmoid{i}")]
    return [*layers, Linear("fc5", classes)]
