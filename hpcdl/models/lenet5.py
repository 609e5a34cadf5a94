"""LeNet-5 in the form of Caffe's MNIST example."""

from __future__ import annotations

from functools import partial

from hpcdl.nn.geometry import Shape
from hpcdl.nn.initial import xavier
from hpcdl.nn.layer import Layer
from hpcdl.nn.layers.affine import Convolution, Linear
from hpcdl.nn.layers.elementwise import Flatten
from hpcdl.nn.layers.pooling import MaxPooling

MIN_UNPADDED = 16
"""Smallest height and width that leave one pixel after two 5x5 convolutions and two halvings."""


def lenet5(shape: Shape = (28, 28, 1), classes: int = 10) -> list[Layer]:
    """LeNet-5: two 5x5 convolutions with max-pooling, two fully connected layers with a ReLU between them.

    Caffe's ``examples/mnist/lenet_train_test.prototxt``, after LeCun et al. 1998: 431,080 parameters on 28x28x1.
    For images smaller than 16x16, such as the 8x8 digits, both convolutions are padded by 2, so that pixels
    remain: 131,080 parameters on 8x8x1. As in that file, biases have twice the learning rate. Unlike there, and as
    in all models here, they have no weight decay.
    """
    convolution = partial(Convolution, weight=xavier, rates=(1, 2))
    linear = partial(Linear, rates=(1, 2))
    padding = 0 if min(shape[:2]) >= MIN_UNPADDED else 2
    return [
        convolution("conv1", 20, 5, padding=padding),
        MaxPooling("pool1", 2),
        convolution("conv2", 50, 5, padding=padding),
        MaxPooling("pool2", 2),
        Flatten("flatten"),
        linear("fc1", 500, relu=True),
        linear("fc2", classes),
    ]
