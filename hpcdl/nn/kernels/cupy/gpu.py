"""The cupy backend: recordings of layers, and a CUDA GPU with CuPy's arrays and compiler, cuBLAS, cuDNN."""

import os
from collections.abc import Callable
from functools import cache, partial
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

from hpcdl.extras import missing
from hpcdl.fabric.comm import Array
from hpcdl.nn.backend import Affine, Backend, Bound
from hpcdl.nn.geometry import BatchNormGeometry, Shape, WindowGeometry, master, storage_dtype
from hpcdl.nn.kernels.cupy.device import Device, EnginePlan, Grid, Uid, grid_over, options, text
from hpcdl.nn.kernels.cupy.elementwise import (
    Addition,
    BatchNorm,
    Concatenation,
    CrossEntropy,
    Dropout,
    ReLU,
    ResponseNormalization,
    Sigmoid,
)
from hpcdl.nn.kernels.cupy.windows import (
    AveragePooling,
    Convolution,
    GlobalAverage,
    Linear,
    LocallyConnected,
    MaxPooling,
    Windows,
)

T = TypeVar("T")

LOCAL_RANKS: Final = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PMI_LOCAL_RANK", "SLURM_LOCALID")
"""Environment variables of launchers that hold the rank within the host."""
DEFAULT_ALGORITHM: Final = -1
"""cuBLAS chooses."""


@cache
def gpu(*, tf32: bool, deterministic: bool) -> "Gpu":
    """Return this rank's device; the ranks of a host take its devices in turn and share them if necessary.

    ValueError, in one line: a missing library, no driver, no device.
    """
    try:
        import cupy
    except ImportError as error:
        raise ValueError(missing("cupy", f"is not installed ({error})")) from None
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise ValueError(f"CuPy is installed, but there is no CUDA driver or device: {error}") from None
    if not count:
        raise ValueError("CuPy is installed, but no CUDA device is available to this process")
    try:
        import cudnn  # noqa: F401 - reports a missing library before anything runs
    except ImportError as error:
        raise ValueError(missing("cudnn", f"is not installed ({error})")) from None
    local_rank = next((int(os.environ[name]) for name in LOCAL_RANKS if name in os.environ), 0)
    return Gpu(local_rank % count, tf32=tf32, deterministic=deterministic)


def gpu_availability() -> tuple[bool, str]:
    """Return True if this backend can run here, and one line on devices, CuPy and cuDNN, or the reason."""
    try:
        device = gpu(tf32=True, deterministic=False)
    except ValueError as error:
        return False, str(error)
    import cudnn
    import cupy

    count = cupy.cuda.runtime.getDeviceCount()
    names = [cupy.cuda.runtime.getDeviceProperties(i)["name"].decode() for i in range(count)]
    return True, (
        f"{count} x {', '.join(sorted(set(names)))}; this rank uses device {device.number}; "
        f"CuPy {cupy.__version__}, cuDNN {cudnn.backend_version()}, its frontend {cudnn.__version__}"
    )


@cache
def _stream(number: int) -> Any:
    """Select a device and a stream for all its work; CUDA's default stream cannot be recorded."""
    import cupy

    cupy.cuda.Device(number).use()
    stream = cupy.cuda.Stream(non_blocking=True)
    stream.use()
    return stream


class Gpu:
    """See :class:`hpcdl.nn.kernels.cupy.device.Device`. Selects the device ``number``."""

    def __init__(self, number: int, *, tf32: bool, deterministic: bool) -> None:
        import cudnn
        import cupy
        from cupy.cuda import cublas, runtime

        from hpcdl.nn.kernels.cupy.cudnn_plans import NoEngine, Planner

        self.has_cudnn = True
        self.number = number
        self._cupy: Any = cupy
        self._stream = _stream(number)
        self._cublas = cublas
        self._types = {
            "float32": runtime.CUDA_R_32F,
            "float64": runtime.CUDA_R_64F,
            "bfloat16": runtime.CUDA_R_16BF,
            "float16": runtime.CUDA_R_16F,
        }
        self._one_and_zero = {dtype: (np.ones(1, dtype), np.zeros(1, dtype)) for dtype in ("float32", "float64")}
        self._handle = cudnn.create_handle()
        cudnn.set_stream(self._handle, self._stream.ptr)
        self._planner = Planner({"handle": self._handle}, tf32=tf32, deterministic=deterministic)
        self._no_engine = NoEngine
        self._plans: dict[tuple[object, ...], EnginePlan | None] = {}
        self._workspace: Array = cupy.empty(0, np.uint8)
        self._outgrown: list[Array] = []
        self._recordings = cupy.cuda.MemoryPool()
        self._has_recordings = False
        self._kernels: dict[tuple[str, str, str], Any] = {}

    def empty(self, shape: Shape, dtype: str) -> Array:
        return self._cupy.empty(shape, dtype)  # type: ignore[no-any-return]

    def zeros(self, shape: Shape, dtype: str) -> Array:
        return self._cupy.zeros(shape, dtype)  # type: ignore[no-any-return]

    def asarray(self, array: Array) -> Array:
        return self._cupy.asarray(array)  # type: ignore[no-any-return]  # through pinned memory, in stream order

    def to_host(self, array: Array) -> Array:
        return self._cupy.asnumpy(array)  # type: ignore[no-any-return]

    def address(self, array: Array) -> int:
        return int(array.data.ptr)  # type: ignore[attr-defined]

    def launch(
        self, source: str, kernel: str, dtype: str, grid: Grid | int, *arguments: Array | float | None
    ) -> None:
        grid = grid_over(grid) if isinstance(grid, int) else grid
        key = (source, kernel, dtype)
        if key not in self._kernels:
            module = self._cupy.RawModule(code=text(source), options=options(dtype))
            self._kernels[key] = module.get_function(kernel)
        ready = tuple(_argument(argument) for argument in arguments)
        self._kernels[key]((grid.blocks,), (grid.x, grid.y), ready)

    def multiply(
        self, a: Array, b: Array, out: Array, dtype: str, *, transpose_a: bool = False, transpose_b: bool = False
    ) -> None:
        """See :class:`hpcdl.nn.kernels.cupy.device.Device`. The products are cuBLAS ``gemmEx``.

        float32 products use the full mantissa. cuBLAS is column-major, so that it computes out^T = b^T a^T.
        """
        m, n = out.shape[-2:]
        k = a.shape[-2] if transpose_a else a.shape[-1]
        if not out.size:
            return
        if not k:
            out[...] = 0
            return
        cublas, out_dtype = self._cublas, dtype if out.dtype == storage_dtype(dtype) else master(dtype)
        # cuBLAS reads alpha and beta in the type of the sums, not in that of the matrices.
        unit, zero = self._one_and_zero["float64" if dtype == "float64" else "float32"]
        computed = cublas.CUBLAS_COMPUTE_64F if dtype == "float64" else cublas.CUBLAS_COMPUTE_32F
        turns = (
            cublas.CUBLAS_OP_T if transposed else cublas.CUBLAS_OP_N for transposed in (transpose_b, transpose_a)
        )
        sizes = (self._cupy.cuda.device.get_cublas_handle(), *turns, n, m, k)
        second, first, target = (
            (self.address(array), self._types[kind], _pitch(array))
            for array, kind in ((b, dtype), (a, dtype), (out, out_dtype))
        )
        alpha, beta = unit.ctypes.data, zero.ctypes.data
        if out.ndim == 2:
            cublas.gemmEx(*sizes, alpha, *second, *first, beta, *target, computed, DEFAULT_ALGORITHM)
        else:
            cublas.gemmStridedBatchedEx(
                *(*sizes, alpha, *second, _step(b), *first, _step(a)),
                *(beta, *target, _step(out), len(out), computed, DEFAULT_ALGORITHM),
            )

    def convolution_plan(
        self, operation: str, geometry: WindowGeometry, batch: int, *, biased: bool
    ) -> EnginePlan | None:
        key = (operation, geometry, batch, biased)
        if key not in self._plans:
            try:
                self._plans[key] = self._planner.convolution(operation, geometry, batch, biased=biased)
            except self._no_engine:
                if operation != "fused":
                    raise
                self._plans[key] = None
        return self._plans[key]

    def batch_norm_plan(self, operation: str, geometry: BatchNormGeometry, batch: int) -> EnginePlan | None:
        key = (operation, geometry, batch)
        if key not in self._plans:
            try:
                self._plans[key] = self._planner.batch_norm(operation, geometry, batch)
            except (self._no_engine, KeyError):  # KeyError: float64
                self._plans[key] = None
        return self._plans[key]

    def execute(self, plan: EnginePlan, arrays: dict[Uid, Array]) -> None:
        """See :class:`hpcdl.nn.kernels.cupy.device.Device`. All plans share one workspace."""
        # One stream runs plan after plan, so that they never use it at once.
        if plan.workspace > self._workspace.size:
            if self._has_recordings:  # recordings keep using the old workspace
                self._outgrown.append(self._workspace)
            self._workspace = self._cupy.empty(plan.workspace, np.uint8)
        # the frontend takes plain ints for numbers of tensors, all else for tensors
        addresses = {int(number): self.address(array) for number, array in arrays.items()}
        plan.graph.execute(addresses, self.address(self._workspace), handle=self._handle)

    def pooled(self, work: Callable[[], T]) -> T:
        with self._cupy.cuda.using_allocator(self._recordings.malloc):
            return work()

    def capture(self, work: Callable[[], T]) -> tuple[Callable[[], None], T]:
        self._has_recordings = True
        with self._cupy.cuda.using_allocator(self._recordings.malloc):
            # relaxed mode: the memory pool may allocate if the first run's memory is not enough
            self._stream.begin_capture(self._cupy.cuda.runtime.streamCaptureModeRelaxed)
            try:
                answer = work()
            finally:
                graph = self._stream.end_capture()  # also after a failure, or nothing runs on this stream again
        graph.launch(self._stream)
        return partial(graph.launch, self._stream), answer


def _pitch(matrix: Array) -> int:
    return max(int(matrix.strides[-2] // matrix.itemsize), int(matrix.shape[-1]), 1)


def _step(matrices: Array) -> int:
    return int(matrices.strides[0] // matrices.itemsize)


def _argument(value: Array | float | None) -> Any:
    if value is None:
        return np.uint64(0)
    if isinstance(value, bool | int):
        return np.int64(value)
    return np.float64(value) if isinstance(value, float) else value


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
