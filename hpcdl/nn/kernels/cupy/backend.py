"""The cupy backend, and graphs of its kernels."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from hpcdl.fabric.comm import Array
from hpcdl.nn.backend import Affine, Backend, Bound
from hpcdl.nn.geometry import WindowGeometry, master, storage_dtype
from hpcdl.nn.kernels.cupy.affine import Convolution, Linear, LocallyConnected, Windows
from hpcdl.nn.kernels.cupy.device import Device
from hpcdl.nn.kernels.cupy.elementwise import Addition, Concatenation, CrossEntropy, Dropout, ReLU, Sigmoid
from hpcdl.nn.kernels.cupy.normalization import BatchNorm, ResponseNormalization
from hpcdl.nn.kernels.cupy.pooling import AveragePooling, GlobalAverage, MaxPooling

_Key = tuple[object, ...]


class _Recording(NamedTuple):
    start: Callable[[], None]
    source: Array
    result: Array | None


class RecordedBound:
    """Bound layer with a recording per batch size.

    The first forward and backward of a size only run: they choose plans, compile kernels and allocate memory. The
    second ones are recorded as a pair, because backward reads the arrays that forward stored; all later ones are
    replayed, in the same memory. A layer whose forward cannot be recorded always runs.
    """

    def __init__(self, device: Device, bound: Bound) -> None:
        self._device = device
        self._bound = bound
        self._ran: set[_Key] = set()
        self._forwards: dict[_Key, _Recording] = {}
        self._backwards: dict[_Key, _Recording] = {}
        self._last: _Key = ()
        self._can_record = True

    def forward(self, x: Array, train: bool) -> Array:
        if not x.size:
            self._last = ()
            return self._bound.forward(x, train)
        self._last = key = (x.shape, train)
        if key in self._backwards:
            result = _replay(self._forwards[key], x)
        elif key in self._ran and self._can_record:
            result = self._recorded_forward(key, x, train)
        else:
            result = self._device.pooled(lambda: self._bound.forward(x, train))
        assert result is not None, "a forward has outputs"
        return result

    def backward(self, dy: Array, needs_dx: bool) -> Array | None:
        key = self._last
        if key in self._backwards:
            return _replay(self._backwards[key], dy)
        if key in self._forwards:
            self._backwards[key] = recording = self._record(dy, lambda: self._bound.backward(dy, needs_dx))
            return recording.result
        if key:
            self._ran.add(key)
            return self._device.pooled(lambda: self._bound.backward(dy, needs_dx))
        return self._bound.backward(dy, needs_dx)

    def _recorded_forward(self, key: _Key, x: Array, train: bool) -> Array | None:
        try:
            self._forwards[key] = recording = self._record(x, lambda: self._bound.forward(x, train))
        except NotImplementedError:
            self._can_record = False
            return self._device.pooled(lambda: self._bound.forward(x, train))
        return recording.result

    def _record(self, source: Array, work: Callable[[], Array | None]) -> _Recording:
        start, result = self._device.capture(work)
        return _Recording(start, source, result)


def _replay(recording: _Recording, array: Array) -> Array | None:
    if array is not recording.source:
        recording.source[...] = array
    recording.start()
    return recording.result


def backend_on(device: Device, *, graphs: bool = False) -> Backend:
    """Return the backend whose arrays and kernels are on ``device``."""

    def convolution(geometry: WindowGeometry) -> Affine:
        by_cudnn = device.has_cudnn and geometry.dtype != "float64"
        return Convolution(device, geometry) if by_cudnn else Windows(device, geometry)

    def cast(array: Array, dtype: str) -> Array:
        narrowing = array.dtype == master(dtype)
        out = device.empty(array.shape, storage_dtype(dtype) if narrowing else master(dtype))
        device.launch("cast", "narrow" if narrowing else "widen", dtype, array.size, array, out, array.size)
        return out

    return Backend(
        name="cupy",
        zeros=lambda size, dtype: device.zeros((size,), dtype),
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
