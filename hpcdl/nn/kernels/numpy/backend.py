"""The numpy backend: the reference for all others."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hpcdl.fabric.comm import Array
from hpcdl.nn.backend import Backend
from hpcdl.nn.geometry import ConvolutionGeometry, LinearGeometry, LocallyConnectedGeometry
from hpcdl.nn.kernels.numpy.affine import Im2col, Linear, LocallyConnected, Rectified
from hpcdl.nn.kernels.numpy.elementwise import Addition, Concatenation, CrossEntropy, Dropout, ReLU, Sigmoid
from hpcdl.nn.kernels.numpy.normalization import BatchNorm, ResponseNormalization
from hpcdl.nn.kernels.numpy.pooling import AveragePooling, GlobalAverage, MaxPooling
from hpcdl.nn.ops import Affine


def _convolution(geometry: ConvolutionGeometry) -> Affine:
    return Rectified(Im2col(geometry)) if geometry.relu else Im2col(geometry)


def _linear(geometry: LinearGeometry) -> Affine:
    return Rectified(Linear(geometry)) if geometry.relu else Linear(geometry)


def _locally_connected(geometry: LocallyConnectedGeometry) -> Affine:
    return Rectified(LocallyConnected(geometry)) if geometry.relu else LocallyConnected(geometry)


def _zeros(size: int, dtype: str) -> Array:
    return np.zeros(size, dtype)


def _same(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return array


BACKEND = Backend(
    name="numpy",
    zeros=_zeros,
    asarray=_same,
    to_host=_same,
    convolution=_convolution,
    linear=_linear,
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
    locally_connected=_locally_connected,
)
