"""Protocol of a device, the grids of kernel launches, and the sources of CUDA kernels.

Ops use this protocol only. :mod:`hpcdl.nn.kernels.cupy.gpu` implements it, and so do tests on a CPU.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple, Protocol, TypeVar

from hpcdl.fabric.comm import Array
from hpcdl.fabric.comm import Device as ArrayDevice
from hpcdl.nn.geometry import BatchNormGeometry, Shape, WindowGeometry, master, storage_dtype

T = TypeVar("T")

THREADS: Final = 256

BLOCKS: Final = 4096
"""Most blocks of a launch; kernels loop with a grid stride. Several per multiprocessor of any present GPU."""
ALIGNMENT: Final = 16
"""Bytes: alignment that cuDNN's engines assume, and the widest load."""


class Grid(NamedTuple):
    """Number of blocks, and threads per block: x along channels, y along rows."""

    blocks: int
    x: int
    y: int


def grid_over(elements: int) -> Grid:
    """Return the grid for a kernel over single elements."""
    return Grid(max(1, min(-(-elements // THREADS), BLOCKS)), THREADS, 1)


def grid_over_rows(rows: int, channels: int, dtype: str) -> Grid:
    """Return the grid for a kernel over rows of channels; a thread processes one load's worth of channels."""
    # Neighbouring threads read neighbouring loads of 16 bytes, which the memory serves at once. Few channels leave
    # threads over, which take further rows; a power of two divides the block without a rest.
    pack = ALIGNMENT // {"float64": 8, "float32": 4}.get(dtype, 2)
    threads = channels // pack if channels % pack == 0 else channels
    x = 1 << min(max(threads - 1, 0).bit_length(), THREADS.bit_length() - 1)
    y = THREADS // x
    return Grid(max(1, min(-(-rows // y), 1 << 20)), x, y)


def is_aligned(address: int) -> bool:
    """Return True if the address has the alignment that libraries assume."""
    return address % ALIGNMENT == 0


@dataclass(frozen=True)
class EnginePlan:
    """A cuDNN graph with its chosen engine."""

    graph: Any
    workspace: int


class Uid(IntEnum):
    """Identifiers of the tensors in cuDNN's graphs; execution refers to them."""

    X = 1
    WEIGHT = 2
    BIAS = 3
    Y = 4
    SHORTCUT = 5
    GAMMA = 6
    BETA = 7
    RUNNING_MEAN = 8
    RUNNING_VARIANCE = 9
    NEXT_MEAN = 10
    NEXT_VARIANCE = 11
    MEAN = 12
    INVERSE = 13
    DGAMMA = 14
    DBETA = 15


class Device(ArrayDevice, Protocol):
    """Arrays, kernel launches, matrix products and cuDNN's plans; dtypes are those of geometries or numpy's."""

    has_cudnn: bool

    def address(self, array: Array) -> int: ...

    def launch(
        self, source: str, kernel: str, dtype: str, grid: Grid | int, *arguments: Array | float | None
    ) -> None:
        """Launch a kernel of the :func:`text` of ``source``; an int instead of a grid: :func:`grid_over` it."""

    def multiply(
        self, a: Array, b: Array, out: Array, dtype: str, *, transpose_a: bool = False, transpose_b: bool = False
    ) -> None:
        """Set ``out`` to the product of matrices of ``dtype``, each transposed on request.

        The dtype of ``out`` is ``dtype`` or its master precision. Rows may be strided; arrays of three axes are
        batches.
        """

    def convolution_plan(
        self, operation: str, geometry: WindowGeometry, batch: int, *, biased: bool
    ) -> EnginePlan | None:
        """Return cuDNN's plan, built once; None if there is no engine, which only happens for "fused".

        See :mod:`hpcdl.nn.kernels.cupy.cudnn_plans`, also for the tensors (:class:`Uid`).
        """

    def batch_norm_plan(self, operation: str, geometry: BatchNormGeometry, batch: int) -> EnginePlan | None:
        """Return cuDNN's plan, built once; None if there is no engine."""

    def pooled(self, work: Callable[[], T]) -> T:
        """Run ``work`` with memory from the pool that recordings use; return its result."""

    def capture(self, work: Callable[[], T]) -> tuple[Callable[[], None], T]:
        """Run and record ``work``; return a function that replays it in the same memory, and the result.

        Recordings share memory, so they must be replayed in the order in which they were recorded.
        NotImplementedError: ``work`` calls what cannot be recorded: CuPy's cuBLAS, for :meth:`multiply`.
        """

    def execute(self, plan: EnginePlan, arrays: dict[Uid, Array]) -> None:
        """Start a plan on arrays, given by tensor number."""


class Op:
    """Base of ops: their arrays, of the geometry's dtype, and launches of the kernels of ``source``."""

    source: ClassVar[str] = "elementwise"

    def __init__(self, device: Device, geometry: Any) -> None:
        self._device = device
        self._geometry = geometry
        self._dtype: str = geometry.dtype
        self._saved: tuple[Array, ...] = ()

    def _empty(self, shape: Shape) -> Array:
        return self._device.empty(shape, storage_dtype(self._dtype))

    def _exact(self, *shape: int) -> Array:
        return self._device.empty(shape, master(self._dtype))

    def _launch(self, kernel: str, grid: Grid | int, *arguments: Array | float | None) -> None:
        self._device.launch(self.source, kernel, self._dtype, grid, *arguments)

    def _over_rows(self, rows: int, channels: int) -> Grid:
        return grid_over_rows(rows, channels, self._dtype)


FOLDER: Final = Path(__file__).parent / "cuda"

NUMBERS: Final = {"float32": 0, "float64": 1, "bfloat16": 2, "float16": 3}
"""Value of the macro ``NUMBER`` for each precision of activations, see ``number.cuh``."""


@cache
def text(name: str) -> str:
    """Return one source with the common header.

    A source elsewhere is given by its absolute path without suffix; it has the headers of its folder too.
    """
    source = FOLDER / f"{name}.cu"
    headers = sorted(source.parent.glob("*.cuh")) if source.parent != FOLDER else []
    return "\n".join(part.read_text(encoding="utf-8") for part in (FOLDER / "number.cuh", *headers, source))


def options(dtype: str) -> tuple[str, ...]:
    """Return the compiler options for one precision."""
    return ("-std=c++17", f"-DNUMBER={NUMBERS[dtype]}")
