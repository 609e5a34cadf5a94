"""The numba backend."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from hpcdl.nn.kernels.numba.batch_norm import BatchNorm
from hpcdl.nn.kernels.numba.compilation import compile_kernels
from hpcdl.nn.kernels.numba.convolution import Convolution
from hpcdl.nn.kernels.numba.joining import Concatenation
from hpcdl.nn.kernels.numba.pooling import MAX_PIXELS, AveragePooling, GlobalAverage, MaxPooling
from hpcdl.nn.kernels.numba.relu import ReLU
from hpcdl.nn.kernels.numba.response_normalization import ResponseNormalization
from hpcdl.nn.kernels.numba.winograd import Winograd
from hpcdl.nn.kernels.numpy.backend import BACKEND as REFERENCE

if TYPE_CHECKING:
    from hpcdl.nn.geometry import ConvolutionGeometry, PoolingGeometry
    from hpcdl.nn.ops import Affine, Elementary


def _convolution(geometry: ConvolutionGeometry) -> Affine:
    return Winograd(geometry) if Winograd.suits(geometry) else Convolution(geometry)


def _max_pooling(geometry: PoolingGeometry) -> Elementary:
    is_small = math.prod(geometry.kernel) <= MAX_PIXELS
    return MaxPooling(geometry) if is_small else REFERENCE.max_pooling(geometry)


BACKEND = replace(
    REFERENCE,
    name="numba",
    convolution=_convolution,
    max_pooling=_max_pooling,
    average_pooling=AveragePooling,
    global_average=GlobalAverage,
    relu=ReLU,
    response_normalization=ResponseNormalization,
    batch_norm=BatchNorm,
    prepare=compile_kernels,
    concatenation=Concatenation,
)
