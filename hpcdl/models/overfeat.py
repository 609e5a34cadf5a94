"""OverFeat, the fast network (Sermanet et al. 2014, table 1)."""

from hpcdl.nn.geometry import Shape
from hpcdl.nn.initial import gaussian
from hpcdl.nn.layer import Layer
from hpcdl.nn.layers.affine import Convolution, Linear
from hpcdl.nn.layers.elementwise import Dropout, Flatten
from hpcdl.nn.layers.pooling import MaxPooling


def overfeat(shape: Shape = (231, 231, 3), classes: int = 1000, *, dropout: float = 0.5) -> list[Layer]:  # noqa: ARG001
    """OverFeat: five convolutions, three of them pooled, and three fully connected layers.

    Sermanet et al. 2014, table 1, the fast network: 145,920,872 parameters on 231x231x3. Initial weights have a
    deviation of 0.01, as in the paper.
    """
    weight = gaussian(0.01)
    return [
        Convolution("conv1", 96, 11, stride=4, weight=weight, relu=True),
        MaxPooling("pool1", 2),
        Convolution("conv2", 256, 5, weight=weight, relu=True),
        MaxPooling("pool2", 2),
        Convolution("conv3", 512, 3, padding=1, weight=weight, relu=True),
        Convolution("conv4", 1024, 3, padding=1, weight=weight, relu=True),
        Convolution("conv5", 1024, 3, padding=1, weight=weight, relu=True),
        MaxPooling("pool5", 2),
        Flatten("flatten"),
        Linear("fc6", 3072, weight=weight, relu=True),
        Dropout("drop6", dropout),
        Linear("fc7", 4096, weight=weight, relu=True),
        Dropout("drop7", dropout),
        Linear("fc8", classes, weight=weight),
    ]
