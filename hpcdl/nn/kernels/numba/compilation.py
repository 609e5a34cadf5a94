"""Compile all kernels before anything is timed; numba caches the machine code next to the sources."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hpcdl.nn import geometry
from hpcdl.nn.kernels.numba.batch_norm import BatchNorm
from hpcdl.nn.kernels.numba.convolution import Convolution
from hpcdl.nn.kernels.numba.joining import Concatenation
from hpcdl.nn.kernels.numba.pooling import AveragePooling, GlobalAverage, MaxPooling
from hpcdl.nn.kernels.numba.relu import ReLU
from hpcdl.nn.kernels.numba.response_normalization import ResponseNormalization
from hpcdl.nn.kernels.numba.winograd import Winograd

if TYPE_CHECKING:
    from hpcdl.nn.ops import Affine, Elementary

SIDE, CHANNELS = 4, 16
"""Size of the test images; a kernel is compiled per dtype, not per size."""


def compile_kernels(dtype: str) -> None:
    """Call every kernel once on small images; numba compiles it or loads it from its cache."""
    shape = (SIDE, SIDE, CHANNELS)
    x = np.ones((1, *shape), dtype)
    vectors = [np.ones(CHANNELS, dtype) for _ in range(6)]

    window = geometry.PoolingGeometry(shape, (2, 2, CHANNELS), (2, 2), (2, 2), (0, 0), dtype)
    elementary: list[Elementary] = [
        MaxPooling(window),
        AveragePooling(window),
        GlobalAverage(geometry.Blob(shape, dtype)),
        ReLU(geometry.Blob(shape, dtype)),
        ResponseNormalization(geometry.ResponseGeometry(shape, 3, 1.0, 0.75, 1.0, dtype)),
    ]
    for op in elementary:
        op.backward(op.forward(x))

    for taps in (1, 3):
        size = SIDE - taps + 1
        places = geometry.ConvolutionGeometry(
            shape, (size, size, CHANNELS), (taps, taps), (1, 1), (0, 0), 1, dtype, relu=True
        )
        affine: Affine = Winograd(places) if Winograd.suits(places) else Convolution(places)
        weight = np.ones((CHANNELS, taps, taps, CHANNELS), dtype)
        y = affine.forward(x, weight, vectors[0])
        affine.backward(y, weight, np.empty_like(weight), vectors[1], needs_dx=True)

    norm = BatchNorm(geometry.BatchNormGeometry(shape, 1e-5, 0.9, dtype, joined=True, relu=True))
    gamma, beta, mean, variance, dgamma, dbeta = vectors
    norm.backward(norm.forward(x, x, gamma, beta, mean, variance, train=True), gamma, dgamma, dbeta)

    join = Concatenation(geometry.ConcatenationGeometry((shape, shape), dtype))
    join.backward(join.forward([x, x]))
