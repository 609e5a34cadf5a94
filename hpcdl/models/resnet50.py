"""ResNet-50 for ImageNet."""

from __future__ import annotations

from hpcdl.nn.geometry import Shape
from hpcdl.nn.initial import gaussian, zeros
from hpcdl.nn.layer import Layer
from hpcdl.nn.layers.affine import Convolution, Linear
from hpcdl.nn.layers.composite import Residual
from hpcdl.nn.layers.normalization import BatchNorm
from hpcdl.nn.layers.pooling import GlobalAverage, MaxPooling


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
            layers.append(_bottleneck(f"res{stage}{'abcdef'[i]}", filters, stride, shortcut))
    return [*layers, GlobalAverage("pool5"), Linear("fc", classes, weight=gaussian(0.01))]


def _bottleneck(name: str, filters: int, stride: int, shortcut: list[Layer]) -> Residual:
    return Residual(
        name,
        [
            Convolution("reduce", filters, 1, bias=None),
            BatchNorm("reduce_bn", relu=True),
            Convolution("3x3", filters, 3, stride=stride, padding=1, bias=None),
            BatchNorm("3x3_bn", relu=True),
            Convolution("expand", 4 * filters, 1, bias=None),
            BatchNorm("expand_bn", gamma=zeros),
        ],
        shortcut,
        relu=True,
    )


def _projection(filters: int, stride: int) -> list[Layer]:
    return [Convolution("project", filters, 1, stride=stride, bias=None), BatchNorm("project_bn")]
