"""ResNet-20 for CIFAR."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdl.models.cifar_residual import stacked

if TYPE_CHECKING:
    from hpcdl.nn.geometry import Shape
    from hpcdl.nn.layer import Layer


def resnet20(shape: Shape = (32, 32, 3), classes: int = 10, *, option: str = "A") -> list[Layer]:  # noqa: ARG001
    """20 layers: three stages of three residual blocks, all batch-normalised.

    He et al. 2015, section 4.2, with that section's shortcuts without parameters, option A: 269,722 parameters on
    32x32x3. With ``option`` = "B" the two shortcuts that halve the image are 1x1 convolutions: 272,474.
    """
    return stacked(20, classes, option)
