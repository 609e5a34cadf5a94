"""AlexNet."""

from __future__ import annotations

from functools import partial

from hpcdl.nn.geometry import Shape
from hpcdl.nn.initial import gaussian, ones
from hpcdl.nn.layer import Layer
from hpcdl.nn.layers.affine import Convolution, Linear
from hpcdl.nn.layers.elementwise import Dropout, Flatten
from hpcdl.nn.layers.normalization import LRN
from hpcdl.nn.layers.pooling import MaxPooling


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
