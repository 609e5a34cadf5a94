"""VGG-19."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdl.models.parts.vgg_configurations import vgg

if TYPE_CHECKING:
    from hpcdl.nn.geometry import Shape
    from hpcdl.nn.layer import Layer


def vgg19(shape: Shape = (224, 224, 3), classes: int = 1000, *, dropout: float = 0.5) -> list[Layer]:  # noqa: ARG001
    """VGG-19: 16 convolutions of 3x3 in five blocks and three fully connected layers.

    Simonyan & Zisserman 2014, table 1, configuration E: 143,667,240 parameters on 224x224x3. The paper initialises
    deep networks with a trained shallow one; He's initial weights make that unnecessary.
    """
    return vgg("E", classes, dropout)
