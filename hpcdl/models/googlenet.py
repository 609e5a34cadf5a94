"""GoogLeNet."""

from functools import partial

from hpcdl.nn.geometry import Shape
from hpcdl.nn.initial import constant, xavier
from hpcdl.nn.layer import Layer
from hpcdl.nn.layers.affine import Convolution, Linear
from hpcdl.nn.layers.composite import Auxiliary, Concat
from hpcdl.nn.layers.elementwise import Dropout, Flatten
from hpcdl.nn.layers.normalization import LRN
from hpcdl.nn.layers.pooling import AveragePooling, GlobalAverage, MaxPooling

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
