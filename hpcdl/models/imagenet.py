"""Networks for ImageNet, 2013 to 2014: network in network and GoogLeNet, both also for 32x32 images, and VGG."""

from functools import partial
from typing import Final

from hpcdl.nn.composite import Auxiliary, Concat
from hpcdl.nn.geometry import Shape
from hpcdl.nn.layer import Layer, constant, he, xavier
from hpcdl.nn.layers import LRN, AveragePooling, Convolution, Dropout, Flatten, GlobalAverage, Linear, MaxPooling


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


FILTERS: Final = (64, 128, 256, 512, 512)
"""Number of filters of the 3x3 convolutions of each block of VGG."""
DEPTHS: Final = {"A": (1, 1, 2, 2, 2), "D": (2, 2, 3, 3, 3), "E": (2, 2, 4, 4, 4)}
"""Number of convolutions of each block, by configuration (table 1)."""


def vgg(column: str, classes: int, dropout: float) -> list[Layer]:
    """Return five blocks of 3x3 convolutions, each pooled by 2, and three fully connected layers."""
    layers: list[Layer] = []
    for block, (filters, depth) in enumerate(zip(FILTERS, DEPTHS[column], strict=True), start=1):
        layers += [Convolution(f"conv{block}_{i}", filters, 3, padding=1, relu=True) for i in range(1, depth + 1)]
        layers.append(MaxPooling(f"pool{block}", 2))
    return [
        *layers,
        Flatten("flatten"),
        Linear("fc6", 4096, weight=he, relu=True),
        Dropout("drop6", dropout),
        Linear("fc7", 4096, weight=he, relu=True),
        Dropout("drop7", dropout),
        Linear("fc8", classes),
    ]


def vgg11(shape: Shape = (224, 224, 3), classes: int = 1000, *, dropout: float = 0.5) -> list[Layer]:  # noqa: ARG001
    """VGG-11: 8 convolutions of 3x3 in five blocks and three fully connected layers.

    Simonyan & Zisserman 2014, table 1, configuration A: 132,863,336 parameters on 224x224x3. The paper initialises
    deep networks with a trained shallow one; He's initial weights make that unnecessary.
    """
    return vgg("A", classes, dropout)


def vgg16(shape: Shape = (224, 224, 3), classes: int = 1000, *, dropout: float = 0.5) -> list[Layer]:  # noqa: ARG001
    """VGG-16: 13 convolutions of 3x3 in five blocks and three fully connected layers.

    Simonyan & Zisserman 2014, table 1, configuration D: 138,357,544 parameters on 224x224x3.
    """
    return vgg("D", classes, dropout)


def vgg19(shape: Shape = (224, 224, 3), classes: int = 1000, *, dropout: float = 0.5) -> list[Layer]:  # noqa: ARG001
    """VGG-19: 16 convolutions of 3x3 in five blocks and three fully connected layers.

    Simonyan & Zisserman 2014, table 1, configuration E: 143,667,240 parameters on 224x224x3.
    """
    return vgg("E", classes, dropout)


_convolution = partial(Convolution, weight=xavier, bias=constant(0.2), relu=True, rates=(1, 2))
_linear = partial(Linear, rates=(1, 2))


def googlenet(
    shape: Shape = (224, 224, 3),  # noqa: ARG001
    classes: int = 1000,
    *,
    auxiliary: bool = True,
    dropout: float = 0.4,
    head_dropout: float = 0.7,
) -> list[Layer]:
    """GoogLeNet: nine inception modules with two auxiliary classifiers.

    Szegedy et al. 2014, with the normalisation and initial values of Caffe's ``bvlc_googlenet``: 13,378,280
    parameters, 6,998,552 without the auxiliary classifiers, whose losses have the factor 0.3. These need images of
    79x79 or more; ``auxiliary`` = false omits them. As in that model's file, biases have twice the learning rate
    and no weight decay.
    """
    first, second = ((_head(name, classes, head_dropout) if auxiliary else []) for name in ("loss1", "loss2"))
    return [
        _convolution("conv1", 64, 7, stride=2, padding=3),
        MaxPooling("pool1", 3, stride=2),
        LRN("norm1"),
        _convolution("conv2_reduce", 64, 1),
        _convolution("conv2", 192, 3, padding=1),
        LRN("norm2"),
        MaxPooling("pool2", 3, stride=2),
        _inception("inception_3a", 64, 96, 128, 16, 32, 32),
        _inception("inception_3b", 128, 128, 192, 32, 96, 64),
        MaxPooling("pool3", 3, stride=2),
        _inception("inception_4a", 192, 96, 208, 16, 48, 64),
        *first,
        _inception("inception_4b", 160, 112, 224, 24, 64, 64),
        _inception("inception_4c", 128, 128, 256, 24, 64, 64),
        _inception("inception_4d", 112, 144, 288, 32, 64, 64),
        *second,
        _inception("inception_4e", 256, 160, 320, 32, 128, 128),
        MaxPooling("pool4", 3, stride=2),
        _inception("inception_5a", 256, 160, 320, 32, 128, 128),
        _inception("inception_5b", 384, 192, 384, 48, 128, 128),
        GlobalAverage("pool5"),
        Dropout("dropout", dropout),
        _linear("classifier", classes),
    ]


def inception_small(shape: Shape = (32, 32, 3), classes: int = 10) -> list[Layer]:  # noqa: ARG001
    """Small GoogLeNet: three convolutions and four inception modules with half of GoogLeNet's filters.

    Chosen here for 32x32 images: the layers of Szegedy et al. 2014, table 1, up to module 4b, the global average
    and the classifier; 377,278 parameters on 32x32x3. Of the three halvings of the image before module 3a only
    ``pool1`` is left: the first convolution is 3x3 with stride 1, and ``pool2`` is missing. There is no dropout
    and no normalisation; batch normalisation would make gradients depend on how ranks divide a batch. Initial
    values and factors on the learning rate are those of :func:`googlenet`.
    """
    return [
        _convolution("conv1", 32, 3, padding=1),
        MaxPooling("pool1", 3, stride=2),
        _convolution("conv2_reduce", 32, 1),
        _convolution("conv2", 96, 3, padding=1),
        _inception("inception_3a", 32, 48, 64, 8, 16, 16),
        _inception("inception_3b", 64, 64, 96, 16, 48, 32),
        MaxPooling("pool3", 3, stride=2),
        _inception("inception_4a", 96, 48, 104, 8, 24, 32),
        _inception("inception_4b", 80, 56, 112, 12, 32, 32),
        GlobalAverage("pool4"),
        _linear("classifier", classes),
    ]


def _inception(
    name: str, direct: int, reduce3: int, filters3: int, reduce5: int, filters5: int, projected: int
) -> Concat:
    """Return an inception module; sizes as in table 1: 1x1, 3x3 reduce, 3x3, 5x5 reduce, 5x5, pool proj."""
    return Concat(
        name,
        [
            [_convolution("1x1", direct, 1)],
            [_convolution("3x3_reduce", reduce3, 1), _convolution("3x3", filters3, 3, padding=1)],
            [_convolution("5x5_reduce", reduce5, 1), _convolution("5x5", filters5, 5, padding=2)],
            [MaxPooling("pool", 3, stride=1, padding=1), _convolution("pool_proj", projected, 1)],
        ],
    )


def _head(name: str, classes: int, dropout: float) -> list[Layer]:
    layers: list[Layer] = [
        AveragePooling("ave_pool", 5, stride=3),
        _convolution("conv", 128, 1),
        Flatten("flatten"),
        _linear("fc", 1024, bias=constant(0.2), relu=True),
        Dropout("drop_fc", dropout),
        _linear("classifier", classes),
    ]
    return [Auxiliary(name, layers, weight=0.3)]


OFFERS: Final = {
    function.__name__: function for function in (nin, nin_cifar, googlenet, inception_small, vgg11, vgg16, vgg19)
}
