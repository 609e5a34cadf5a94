"""Network in network for CIFAR."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdl.nn.layers.convolution import Convolution
from hpcdl.nn.layers.dropout import Dropout
from hpcdl.nn.layers.pooling import AveragePooling, GlobalAverage, MaxPooling

if TYPE_CHECKING:
    from hpcdl.nn.geometry import Shape
    from hpcdl.nn.layer import Layer


def nin_cifar(shape: Shape = (32, 32, 3), classes: int = 10, *, dropout: float = 0.5) -> list[Layer]:  # noqa: ARG001
    """Three convolutions, each with two 1x1 convolutions behind it, and a global average instead of a classifier.

    Lin et al. 2013, in the sizes of the authors' CIFAR-10 model for Caffe: 966,986 parameters on 32x32x3. The
    paper does not say how weights start; here it is He's way.
    """
    return [
        Convolution("conv1", 192, 5, padding=2, relu=True),
        Convolution("cccp1", 160, 1, relu=True),
        Convolution("cccp2", 96, 1, relu=True),
        MaxPooling("pool1", 3, stride=2),
        Dropout("drop1", dropout),
        Convolution("conv2", 192, 5, padding=2, relu=True),
        Convolution("cccp3", 192, 1, relu=True),
        Convolution("cccp4", 192, 1, relu=True),
        AveragePooling("pool2", 3, stride=2),
        Dropout("drop2", dropout),
        Convolution("conv3", 192, 3, padding=1, relu=True),
        Convolution("cccp5", 192, 1, relu=True),
        Convolution("cccp6", classes, 1, relu=True),
        GlobalAverage("pool3"),
    ]
