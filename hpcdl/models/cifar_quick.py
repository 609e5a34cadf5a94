"""Caffe's quick network for CIFAR-10."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdl.nn.layers.convolution import Convolution
from hpcdl.nn.layers.flatten import Flatten
from hpcdl.nn.layers.linear import Linear
from hpcdl.nn.layers.pooling import AveragePooling, MaxPooling
from hpcdl.nn.layers.relu import ReLU

if TYPE_CHECKING:
    from hpcdl.nn.geometry import Shape
    from hpcdl.nn.layer import Layer


def cifar_quick(shape: Shape = (32, 32, 3), classes: int = 10) -> list[Layer]:  # noqa: ARG001
    """Three padded 5x5 convolutions, each pooled 3/2 (max, then averages), and two fully connected layers.

    Caffe's ``examples/cifar10/cifar10_quick_train_test.prototxt``, after Krizhevsky's cuda-convnet: 145,578
    parameters on 32x32x3. Initial weights are He's and Caffe's ``xavier``, not that file's Gaussians, whose
    deviations (1e-4 in the first layer) are made for pixels from -128 to 127.
    """
    return [
        Convolution("conv1", 32, 5, padding=2),
        MaxPooling("pool1", 3, stride=2),
        ReLU("relu1"),
        Convolution("conv2", 32, 5, padding=2, relu=True),
        AveragePooling("pool2", 3, stride=2),
        Convolution("conv3", 64, 5, padding=2, relu=True),
        AveragePooling("pool3", 3, stride=2),
        Flatten("flatten"),
        Linear("fc1", 64),
        Linear("fc2", classes),
    ]
