"""LeNet-5 as Caffe's MNIST example has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdl.nn.initial import xavier
from hpcdl.nn.layers.convolution import Convolution
from hpcdl.nn.layers.flatten import Flatten
from hpcdl.nn.layers.linear import Linear
from hpcdl.nn.layers.pooling import MaxPooling

if TYPE_CHECKING:
    from hpcdl.nn.geometry import Shape
    from hpcdl.nn.layer import Layer

SMALLEST_UNPADDED = 16
"""Images of this height and width keep one pixel after two 5x5 convolutions and two halvings."""


def lenet5(shape: Shape = (28, 28, 1), classes: int = 10) -> list[Layer]:
    """Two 5x5 convolutions, each max-pooled by 2, and two fully connected layers with one ReLU between them.

    Caffe's ``examples/mnist/lenet_train_test.prototxt``, after LeCun et al. 1998: 431,080 parameters on
    28x28x1. Images smaller than 16x16, such as the 8x8 digits, would vanish in it; for them both convolutions
    are padded by 2 and keep the image's size, everything else stays: 131,080 parameters on 8x8x1.
    """
    padding = 0 if min(shape[:2]) >= SMALLEST_UNPADDED else 2
    return [
        Convolution("conv1", 20, 5, padding=padding, weight=xavier),
        MaxPooling("pool1", 2),
        Convolution("conv2", 50, 5, padding=padding, weight=xavier),
        MaxPooling("pool2", 2),
        Flatten("flatten"),
        Linear("fc1", 500, relu=True),
        Linear("fc2", classes),
    ]
