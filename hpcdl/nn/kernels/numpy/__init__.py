"""Reference kernels in numpy with its BLAS.

Tests compare all other backends with this one, so each op is its formula in few array operations. A convolution
copies windows to the rows of a matrix, in chunks (``windows.py``); pooling is a loop over the offsets in a window,
each of which is a strided view of all windows. Memory of activations is reused as soon as no array refers to it
(``activation_pool.py``).

The one rule: an op takes memory from :func:`hpcdl.nn.kernels.numpy.activation_pool.allocate` and keeps in
``_saved`` what backward needs; backward empties it, and the next layer gets the memory. Open ``windows.py`` first.
"""

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from hpcdl.nn.backend import Affine, Backend
from hpcdl.nn.geometry import LinearGeometry, WindowGeometry
from hpcdl.nn.kernels.numpy.elementwise import (
    Addition,
    BatchNorm,
    Concatenation,
    CrossEntropy,
    Dropout,
    ReLU,
    ResponseNormalization,
    Sigmoid,
)
from hpcdl.nn.kernels.numpy.windows import (
    AveragePooling,
    GlobalAverage,
    Im2col,
    Linear,
    LocallyConnected,
    MaxPooling,
    Rectified,
)

Geometry = TypeVar("Geometry", LinearGeometry, WindowGeometry)


def with_relu(build: Callable[[Geometry], Affine]) -> Callable[[Geometry], Affine]:
    """Return a function that builds the op, with a ReLU after it if the geometry has one."""
    return lambda geometry: Rectified(build(geometry)) if geometry.relu else build(geometry)


BACKEND = Backend(
    name="numpy",
    zeros=np.zeros,
    asarray=lambda array: array,
    to_host=lambda array: array,
    convolution=with_relu(Im2col),
    linear=with_relu(Linear),
    max_pooling=MaxPooling,
    average_pooling=AveragePooling,
    global_average=GlobalAverage,
    relu=ReLU,
    response_normalization=ResponseNormalization,
    batch_norm=BatchNorm,
    dropout=Dropout,
    concatenation=Concatenation,
    addition=Addition,
    cross_entropy=CrossEntropy,
    sigmoid=Sigmoid,
    locally_connected=with_relu(LocallyConnected),
)


def numpy() -> Backend:
    """Return the reference backend."""
    return BACKEND
