"""Network in network for ImageNet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdl.nn.layers.convolution import Convolution
from hpcdl.nn.layers.dropout import Dropout
from hpcdl.nn.layers.pooling import GlobalAverage, MaxPooling

if TYPE_CHECKING:
    from hpcdl.nn.geometry import Shape
    from hpcdl.nn.layer import Layer


def nin(shape: Shape = (224, 224, 3), classes: int = 1000, *, dropout: float = 0.5) -> list[Layer]:  # noqa: ARG001
    """Four convolutions, each with two 1x1 convolutions behind it, and a global average instead of a classifier.

    Lin et al. 2013, in the sizes of the authors' ImageNet model for Caffe, the one of FireCaffe: 7,595,176
    parameters. The paper does not say how weights start; here it is He's way.
    """
    return [
        Convolution("conv1", 96, 11, stride=4, relu=True),
        Convolution("cccp1", 96, 1, relu=True),
        Convolution("cccp2", 96, 1, relu=True),
        MaxPooling("pool1", 3, stride=2),
        Convolution("conv2", 256, 5, padding=2, relu=True),
        Convolution("cccp3", 256, 1, relu=True),
        Convolution("cccp4", 256, 1, relu=True),
        MaxPooling("pool2", 3, stride=2),
        Convolution("conv3", 384, 3, padding=1, relu=True),
        Convolution("cccp5", 384, 1, relu=True),
        Convolution("cccp6", 384, 1, relu=True),
        MaxPooling("pool3", 3, stride=2),
        Dropout("drop3", dropout),
        Convolution("conv4", 1024, 3, padding=1, relu=True),
        Convolution("cccp7", 1024, 1, relu=True),
        Convolution("cccp8", classes, 1, relu=True),
        GlobalAverage("pool4"),
    ]
