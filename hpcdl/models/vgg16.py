"""VGG-16."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdl.models.vgg_configurations import configuration

if TYPE_CHECKING:
    from hpcdl.nn.geometry import Shape
    from hpcdl.nn.layer import Layer


def vgg16(shape: Shape = (224, 224, 3), classes: int = 1000, *, dropout: float = 0.5) -> list[Layer]:  # noqa: ARG001
    """13 convolutions of 3x3 in five blocks and three fully connected layers.

    Simonyan & Zisserman 2014, table 1, configuration D: 138,357,544 parameters on 224x224x3. The paper starts the
    deep networks from a trained shallow one; here weights start in He's way, which does not need that.
    """
    return configuration("D", classes, dropout)
