"""Networks with the sizes of Caffe's files: LeNet-5, the quick network for CIFAR-10, AlexNet; and OverFeat."""

from functools import partial
from typing import Final

from hpcdl.nn.geometry import Shape
from hpcdl.nn.layer import Layer, gaussian, ones, xavier
from hpcdl.nn.layers import LRN, AveragePooling, Convolution, Dropout, Flatten, Linear, MaxPooling, ReLU

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


def cifar_quick(shape: Shape = (32, 32, 3), classes: int = 10) -> list[Layer]:  # noqa: ARG001
    """Caffe's quick network: three padded 5x5 convolutions with 3/2 pooling, two fully connected layers.

    Caffe's ``examples/cifar10/cifar10_quick_train_test.prototxt``, after Krizhevsky's cuda-convnet: 145,578
    parameters on 32x32x3. Initial weights are He's and Caffe's ``xavier``; that file's Gaussians (deviation 1e-4
    in the first layer) suit pixels from -128 to 127. As in that file, biases have twice the learning rate. Unlike
    there, and as in all models here, they have no weight decay.
    """
    convolution, linear = partial(Convolution, rates=(1, 2)), partial(Linear, rates=(1, 2))
    return [
        convolution("conv1", 32, 5, padding=2),
        MaxPooling("pool1", 3, stride=2),
        ReLU("relu1"),
        convolution("conv2", 32, 5, padding=2, relu=True),
        AveragePooling("pool2", 3, stride=2),
        convolution("conv3", 64, 5, padding=2, relu=True),
        AveragePooling("pool3", 3, stride=2),
        Flatten("flatten"),
        linear("fc1", 64),
        linear("fc2", classes),
    ]


def alexnet(
    shape: Shape = (227, 227, 3),  # noqa: ARG001
    classes: int = 1000,
    *,
    groups: int = 2,
    dropout: float = 0.5,
) -> list[Layer]:
    """AlexNet: five convolutions, the first two normalised and pooled, and three fully connected layers.

    Krizhevsky et al. 2012, with the sizes of Caffe's ``bvlc_alexnet``: 60,965,224 parameters on 227x227x3. With
    ``groups`` = 1 every filter reads all channels, which the paper's two GPUs did not allow: 62,378,344
    parameters, as in FireCaffe. Initial weights follow the paper (section 5): deviation 0.01, and biases of 1
    where they give the ReLUs positive inputs. Normalisation has Caffe's constants. As in that model's file, biases
    have twice the learning rate and no weight decay.
    """
    convolution = partial(Convolution, weight=gaussian(0.01), rates=(1, 2))
    linear = partial(Linear, weight=gaussian(0.01), rates=(1, 2))
    return [
        convolution("conv1", 96, 11, stride=4, relu=True),
        LRN("norm1"),
        MaxPooling("pool1", 3, stride=2),
        convolution("conv2", 256, 5, padding=2, groups=groups, bias=ones, relu=True),
        LRN("norm2"),
        MaxPooling("pool2", 3, stride=2),
        convolution("conv3", 384, 3, padding=1, relu=True),
        convolution("conv4", 384, 3, padding=1, groups=groups, bias=ones, relu=True),
        convolution("conv5", 256, 3, padding=1, groups=groups, bias=ones, relu=True),
        MaxPooling("pool5", 3, stride=2),
        Flatten("flatten"),
        linear("fc6", 4096, bias=ones, relu=True),
        Dropout("drop6", dropout),
        linear("fc7", 4096, bias=ones, relu=True),
        Dropout("drop7", dropout),
        linear("fc8", classes),
    ]


def overfeat(shape: Shape = (231, 231, 3), classes: int = 1000, *, dropout: float = 0.5) -> list[Layer]:  # noqa: ARG001
    """OverFeat: five convolutions, three of them pooled, and three fully connected layers.

    Sermanet et al. 2014, table 1, the fast network: 145,920,872 parameters on 231x231x3. Initial weights have a
    deviation of 0.01, as in the paper.
    """
    convolution = partial(Convolution, weight=gaussian(0.01), relu=True)
    linear = partial(Linear, weight=gaussian(0.01))
    return [
        convolution("conv1", 96, 11, stride=4),
        MaxPooling("pool1", 2),
        convolution("conv2", 256, 5),
        MaxPooling("pool2", 2),
        *(convolution(f"conv{i}", filters, 3, padding=1) for i, filters in ((3, 512), (4, 1024), (5, 1024))),
        MaxPooling("pool5", 2),
        Flatten("flatten"),
        linear("fc6", 3072, relu=True),
        Dropout("drop6", dropout),
        linear("fc7", 4096, relu=True),
        Dropout("drop7", dropout),
        linear("fc8", classes),
    ]


OFFERS: Final = {"lenet5": lenet5, "cifar_quick": cifar_quick, "alexnet": alexnet, "overfeat": overfeat}
