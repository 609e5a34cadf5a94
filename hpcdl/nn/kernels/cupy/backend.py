"""The cupy backend."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from hpcdl.nn.backend import Backend
from hpcdl.nn.kernels.cupy.affine import Convolution, Linear, Windows
from hpcdl.nn.kernels.cupy.device import grid_over
from hpcdl.nn.kernels.cupy.elementwise import Addition, Concatenation, CrossEntropy, Dropout, ReLU, Sigmoid
from hpcdl.nn.kernels.cupy.graph import RecordedBound
from hpcdl.nn.kernels.cupy.locally_connected import LocallyConnected
from hpcdl.nn.kernels.cupy.normalization import BatchNorm, ResponseNormalization
from hpcdl.nn.kernels.cupy.pooling import AveragePooling, GlobalAverage, MaxPooling
from hpcdl.nn.precision import master, storage_dtype

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array
    from hpcdl.nn.geometry import ConvolutionGeometry
    from hpcdl.nn.kernels.cupy.device import Device
    from hpcdl.nn.ops import Affine


def backend_on(device: Device, *, graphs: bool = False) -> Backend:
    """Return the backend whose arrays and kernels are on ``device``."""

    def convolution(geometry: ConvolutionGeometry) -> Affine:
        by_cudnn = device.has_cudnn and geometry.dtype != "float64"
        return Convolution(device, geometry) if by_cudnn else Windows(device, geometry)

    def cast(array: Array, dtype: str) -> Array:
        return _cast(device, array, dtype)

    def zeros(size: int, dtype: str) -> Array:
        return device.zeros((size,), dtype)

    return Backend(
        name="cupy",
        zeros=zeros,
        asarray=device.asarray,
        to_host=device.to_host,
        convolution=convolution,
        linear=partial(Linear, device),
        max_pooling=partial(MaxPooling, device),
        average_pooling=partial(AveragePooling, device),
        global_average=partial(GlobalAverage, device),
        relu=partial(ReLU, device),
        response_normalization=partial(ResponseNormalization, device),
        batch_norm=partial(BatchNorm, device),
        dropout=partial(Dropout, device),
        concatenation=partial(Concatenation, device),
        addition=partial(Addition, device),
        cross_entropy=partial(CrossEntropy, device),
        sigmoid=partial(Sigmoid, device),
        locally_connected=partial(LocallyConnected, device),
        cast=cast,
        record=partial(RecordedBound, device) if graphs else None,
        device=device,
    )


def _cast(device: Device, array: Array, dtype: str) -> Array:
    """Convert float32 to 16-bit ``dtype``, or an array of 16-bit ``dtype`` to float32."""
    narrowing = array.dtype == master(dtype)
    out = device.empty(array.shape, storage_dtype(dtype) if narrowing else master(dtype))
    device.launch("cast", "narrow" if narrowing else "widen", dtype, grid_over(array.size), array, out, array.size)
    return out
