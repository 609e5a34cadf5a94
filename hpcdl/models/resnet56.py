"""ResNet-56 for CIFAR."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdl.models.parts.cifar_residual import cifar_resnet

if TYPE_CHECKING:
    from hpcdl.nn.geometry import Shape
    from hpcdl.nn.layer import Layer


def resnet56(shape: Shape = (32, 32, 3), classes: int = 10, *, option: str = "A") -> list[Layer]:  # noqa: ARG001
    """ResNet-56: three stages of nine residual blocks with batch normalisation.

    He et al. 2015, section 4.2, with shortcuts without parameters (option A): 853,018 parameters on 32x32x3. With
    ``option`` = "B" the two shortcuts that halve the image are 1x1 convolutions: 855,770.
    """
    return cifar_resnet(56, classes, option)
