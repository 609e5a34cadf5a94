"""Residual networks for CIFAR and ImageNet (He et al. 2015)."""

from typing import Final

from hpcdl.nn.composite import Residual
from hpcdl.nn.geometry import Shape
from hpcdl.nn.layer import Layer, gaussian, he, zeros
from hpcdl.nn.layers import BatchNorm, Convolution, GlobalAverage, Linear, MaxPooling, Subsampling


def cifar_resnet(depth: int, classes: int, option: str) -> list[Layer]:
    """Return a network of ``depth`` = 6 n + 2 layers: a convolution, 3 n blocks of two, a fully connected layer.

    The three stages have 16, 32 and 64 filters; the first block of the second and third stage halves the image.
    ``option`` selects its shortcut: "A" takes every second pixel and appends zero channels, without parameters;
    "B" is a 1x1 convolution with batch normalisation.

    ValueError: another option.
    """
    if option not in {"A", "B"}:
        raise ValueError(f"option {option!r} is neither 'A' nor 'B'")
    layers: list[Layer] = [Convolution("conv1", 16, 3, padding=1, bias=None), BatchNorm("bn1", relu=True)]
    for stage, filters in enumerate((16, 32, 64), start=1):
        for i in range(1, (depth - 2) // 6 + 1):
            halves, shortcut = stage > 1 and i == 1, list[Layer]()
            if halves:
                shortcut = [Subsampling("subsample", filters)] if option == "A" else _projection(filters, 2)
            branch: list[Layer] = [
                Convolution("conv1", filters, 3, stride=2 if halves else 1, padding=1, bias=None),
                BatchNorm("bn1", relu=True),
                Convolution("conv2", filters, 3, padding=1, bias=None),
                BatchNorm("bn2"),
            ]
            layers.append(Residual(f"block{stage}_{i}", branch, shortcut, relu=True))
    return [*layers, GlobalAverage("pool"), Linear("fc", classes, weight=he)]


def resnet20(shape: Shape = (32, 32, 3), classes: int = 10, *, option: str = "A") -> list[Layer]:  # noqa: ARG001
    """ResNet-20: three stages of three residual blocks with batch normalisation.

    He et al. 2015, section 4.2, with shortcuts without parameters (option A): 269,722 parameters on 32x32x3. With
    ``option`` = "B" the two shortcuts that halve the image are 1x1 convolutions: 272,474.
    """
    return cifar_resnet(20, classes, option)


def resnet56(shape: Shape = (32, 32, 3), classes: int = 10, *, option: str = "A") -> list[Layer]:  # noqa: ARG001
    """ResNet-56: three stages of nine residual blocks with batch normalisation.

    He et al. 2015, section 4.2, with shortcuts without parameters (option A): 853,018 parameters on 32x32x3. With
    ``option`` = "B" the two shortcuts that halve the image are 1x1 convolutions: 855,770.
    """
    return cifar_resnet(56, classes, option)


def resnet50(shape: Shape = (224, 224, 3), classes: int = 1000) -> list[Layer]:  # noqa: ARG001
    """ResNet-50: a convolution, sixteen residual blocks of three, and a fully connected layer.

    He et al. 2015, table 1, in the variant of Goyal et al. 2017 (section 5.1): the 3x3 convolution halves the
    image ("v1.5"), the last gamma of each block is initially zero, the classifier's weights have deviation 0.01.
    25,557,032 parameters.
    """
    layers: list[Layer] = [
        Convolution("conv1", 64, 7, stride=2, padding=3, bias=None),
        BatchNorm("bn1", relu=True),
        MaxPooling("pool1", 3, stride=2, padding=1, mode="floor"),
    ]
    for stage, (filters, depth) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), start=2):
        for i in range(depth):
            stride = 2 if stage > 2 and i == 0 else 1
            shortcut = _projection(4 * filters, stride) if i == 0 else []
            branch: list[Layer] = [
                Convolution("reduce", filters, 1, bias=None),
                BatchNorm("reduce_bn", relu=True),
                Convolution("3x3", filters, 3, stride=stride, padding=1, bias=None),
                BatchNorm("3x3_bn", relu=True),
                Convolution("expand", 4 * filters, 1, bias=None),
                BatchNorm("expand_bn", gamma=zeros),
            ]
            layers.append(Residual(f"res{stage}{'abcdef'[i]}", branch, shortcut, relu=True))
    return [*layers, GlobalAverage("pool5"), Linear("fc", classes, weight=gaussian(0.01))]


def _projection(filters: int, stride: int) -> list[Layer]:
    return [Convolution("project", filters, 1, stride=stride, bias=None), BatchNorm("project_bn")]


OFFERS: Final = {"resnet20": resnet20, "resnet56": resnet56, "resnet50": resnet50}
