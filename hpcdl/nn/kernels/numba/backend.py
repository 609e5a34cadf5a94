"""The numba backend."""

import math
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from hpcdl.compiled import cache_folder
from hpcdl.nn import geometry
from hpcdl.nn.backend import Affine, Elementary, NormVectors, Weights, limit, parallel_ranges
from hpcdl.nn.geometry import WindowGeometry
from hpcdl.nn.kernels.numba.convolution import Convolution
from hpcdl.nn.kernels.numba.memory_bound import MAX_PIXELS, BatchNorm, MaxPooling, ResponseNormalization
from hpcdl.nn.kernels.numba.vectors import tile
from hpcdl.nn.kernels.numba.winograd import Winograd
from hpcdl.nn.kernels.numpy import BACKEND as REFERENCE
from hpcdl.nn.kernels.numpy import with_relu
from hpcdl.nn.kernels.numpy.windows import Linear

SIDE: Final = 4
"""Size of the test images; a kernel is compiled per dtype, not per size."""
SMALL, LARGE = (1, 16), (256, 32)
"""Images and channels of loops for one thread, and for several."""


def compile_kernels(dtype: str) -> None:
    """Call every kernel once on small images; numba compiles it or loads it from its cache."""
    for images, channels in (SMALL, LARGE) if limit() > 1 else (SMALL,):
        _call_kernels(images, channels, dtype)


def announcement(dtype: str) -> str:
    """Return what a first :func:`compile_kernels` does: minutes on one core, and the folder of its results."""
    minutes = "2 minutes" if limit() > 1 else "1 minute"
    folder = cache_folder(tile)
    kept = f"once on this kind of processor, about {minutes}; cached in {folder}"
    if folder is None:
        kept = f"in each run, about {minutes}; NUMBA_CACHE_DIR can name a folder that keeps them"
    return f"compiling the {dtype} kernels of numba ({kept})"


def _call_kernels(images: int, channels: int, dtype: str) -> None:
    shape = (SIDE, SIDE, channels)
    x, vectors = np.ones((images, *shape), dtype), [np.ones(channels, dtype) for _ in range(6)]

    window = geometry.WindowGeometry(shape, (2, 2, channels), (2, 2), (2, 2), (0, 0), dtype)
    elementary: list[Elementary] = [
        MaxPooling(window),
        ResponseNormalization(geometry.ResponseGeometry(shape, 3, 1.0, 0.75, 1.0, dtype)),
    ]
    for op in elementary:
        op.backward(op.forward(x))

    for taps in (1, 3):
        size = SIDE - taps + 1
        places = geometry.WindowGeometry(
            shape, (size, size, channels), (taps, taps), (1, 1), (0, 0), dtype, relu=True
        )
        affine = _convolution(places)
        weight = np.ones((channels, taps, taps, channels), dtype)
        weights = Weights(weight, vectors[0], np.empty_like(weight), vectors[1])
        affine.backward(affine.forward(x, weights), weights, needs_dx=True)

    norm = BatchNorm(geometry.BatchNormGeometry(shape, 1e-5, 0.9, dtype, joined=True, relu=True))
    norm.backward(norm.forward(x, x, NormVectors(*vectors), train=True), NormVectors(*vectors))


def _convolution(geometry: WindowGeometry) -> Affine:
    return Winograd(geometry) if Winograd.suits(geometry) else Convolution(geometry)


def _max_pooling(geometry: WindowGeometry) -> Elementary:
    is_small = math.prod(geometry.kernel) <= MAX_PIXELS
    return MaxPooling(geometry) if is_small else REFERENCE.max_pooling(geometry)


BACKEND = replace(
    REFERENCE,
    name="numba",
    divides_products=True,
    convolution=_convolution,
    linear=with_relu(partial(Linear, divide=parallel_ranges)),
    max_pooling=_max_pooling,
    response_normalization=ResponseNormalization,
    batch_norm=BatchNorm,
    prepare=compile_kernels,
    announcement=announcement,
)
