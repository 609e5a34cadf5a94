"""Network in network, for ImageNet and for CIFAR."""

from functools import partial
from typing import Final

from hpcdl.nn.geometry import Shape
from hpcdl.nn.layer import Layer
from hpcdl.nn.layers.affine import Convolution
from hpcdl.nn.layers.elementwise import Dropout
from hpcdl.nn.layers.pooling import AveragePooling, GlobalAverage, MaxPooling


def nin_cifar(shape: Shape = (32, 32, 3), classes: int = 10, *, dropout: float = 0.5) -> list[Layer]:  # noqa: ARG001
    """NiN for CIFAR: three convolutions, each followed by two of 1x1, and a global average.

    Lin et al. 2013, with the sizes of the authors' CIFAR-10 model for Caffe: 966,986 parameters on 32x32x3. The
    paper does not specify initial weights; here they are He's. As in that model's file, biases have no weight
    decay and twice the learning rate; the last convolution has a tenth of the learning rate.
    """
    convolution = partial(Convolution, relu=True, rates=(1, 2))
    return [
        convolution("conv1", 192, 5, padding=2),
        convolution("cccp1", 160, 1),
        convolution("cccp2", 96, 1),
        MaxPooling("pool1", 3, stride=2),
        Dropout("drop1", dropout),
        convolution("conv2", 192, 5, padding=2),
        convolution("cccp3", 192, 1),
        convolution("cccp4", 192, 1),
        AveragePooling("pool2", 3, stride=2),
        Dropout("drop2", dropout),
        convolution("conv3", 192, 3, padding=1),
        convolution("cccp5", 192, 1),
        convolution("cccp6", classes, 1, rates=(0.1, 0.1)),
        GlobalAverage("pool3"),
    ]


def nin(shape: Shape = (224, 224, 3), classes: int = 1000, *, dropout: float = 0.5) -> list[Layer]:  # noqa: ARG001
    """NiN: four convolutions, each followed by two of 1x1, and a global average.

    Lin et al. 2013, with the sizes of the authors' ImageNet model for Caffe, used by FireCaffe: 7,595,176
    parameters. The paper does not specify initial weights; here they are He's. As in that model's file, biases
    have twice the learning rate and no weight decay.
    """
    convolution = partial(Convolution, relu=True, rates=(1, 2))
    return [
        convolution("conv1", 96, 11, stride=4),
        convolution("cccp1", 96, 1),
        convolution("cccp2", 96, 1),
        MaxPooling("pool1", 3, stride=2),
        convolution("conv2", 256, 5, padding=2),
        convolution("cccp3", 256, 1),
        convolution("cccp4", 256, 1),
        MaxPooling("pool2", 3, stride=2),
        convolution("conv3", 384, 3, padding=1),
        convolution("cccp5", 384, 1),
        convolution("cccp6", 384, 1),
        MaxPooling("pool3", 3, stride=2),
        Dropout("drop3", dropout),
        convolution("conv4", 1024, 3, padding=1),
        convolution("cccp7", 1024, 1),
        convolution("cccp8", classes, 1),
        GlobalAverage("pool4"),
    ]


OFFERS: Final = {"nin": nin, "nin_cifar": nin_cifar}
