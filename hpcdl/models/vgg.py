"""VGG-11, VGG-16 and VGG-19 (Simonyan & Zisserman 2014, table 1)."""

from typing import Final

from hpcdl.nn.geometry import Shape
from hpcdl.nn.initial import he
from hpcdl.nn.layer import Layer
from hpcdl.nn.layers.affine import Convolution, Linear
from hpcdl.nn.layers.elementwise import Dropout, Flatten
from hpcdl.nn.layers.pooling import MaxPooling

FILTERS: Final = (64, 128, 256, 512, 512)
"""Number of filters of the 3x3 convolutions of each block."""
DEPTHS: Final = {"A": (1, 1, 2, 2, 2), "D": (2, 2, 3, 3, 3), "E": (2, 2, 4, 4, 4)}
"""Number of convolutions of each block, by configuration."""


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


OFFERS: Final = {"vgg11": vgg11, "vgg16": vgg16, "vgg19": vgg19}
