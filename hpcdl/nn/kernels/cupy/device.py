"""What the ops of this backend ask of a device, and how kernels are spread over it.

The ops below know this protocol only. :mod:`hpcdl.nn.kernels.cupy.gpu` is the real thing; the tests have another
one that runs the same kernels on a processor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from hpcdl.nn.precision import carrier

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from hpcdl.fabric.comm import Array
    from hpcdl.nn.geometry import BatchNormGeometry, ConvolutionGeometry, Shape
    from hpcdl.nn.kernels.cupy.cudnn_plans import Plan

T = TypeVar("T")

THREADS: Final = 256
"""Threads of a block."""

BLOCKS: Final = 4096
"""Blocks at most; kernels go on in strides. Several per multiprocessor of any GPU there is."""

ALIGNMENT: Final = 16
"""Bytes: what cuDNN's engines are chosen for, and the widest load."""


class Spread(NamedTuple):
    """Blocks, and threads of a block in two directions: x along channels, y along rows."""

    blocks: int
    x: int
    y: int


def over(elements: int) -> Spread:
    """Spread single elements."""
    return Spread(max(1, min(-(-elements // THREADS), BLOCKS)), THREADS, 1)


def over_rows(rows: int, channels: int, dtype: str) -> Spread:
    """Spread rows of channels, of which a thread takes as many as one load moves."""
    pack = ALIGNMENT // size_of(dtype)
    wanted = channels // pack if channels % pack == 0 else channels
    x = 1 << min(max(wanted - 1, 0).bit_length(), THREADS.bit_length() - 1)
    y = THREADS // x
    return Spread(max(1, min(-(-rows // y), 1 << 20)), x, y)


def size_of(dtype: str) -> int:
    """Bytes of an element."""
    return {"float64": 8, "float32": 4}.get(dtype, 2)


def is_aligned(address: int) -> bool:
    """Whether libraries may be handed it."""
    return address % ALIGNMENT == 0


class Device(Protocol):
    """Arrays, launches and products. Everything happens in the order of one stream."""

    deterministic: bool
    has_cudnn: bool

    def empty(self, shape: Shape, dtype: str) -> Array:
        """Return an array of undefined content, aligned; ``dtype`` as in a geometry or as in numpy."""
        ...

    def zeros(self, shape: Shape, dtype: str) -> Array:
        """Return an array of zeros."""
        ...

    def asarray(self, array: npt.NDArray[Any]) -> Array:
        """Return a copy of a host array on the device."""
        ...

    def to_host(self, array: Array) -> npt.NDArray[Any]:
        """Return a copy on the host; waits for what is under way."""
        ...

    def address(self, array: Array) -> int:
        """Where the array begins."""
        ...

    def launch(
        self, source: str, kernel: str, dtype: str, spread: Spread, *arguments: Array | float | None
    ) -> None:
        """Start ``kernel`` of ``cuda/source.cu``, compiled for ``dtype``.

        Arrays are handed over as addresses, None as no address, whole numbers as 64 bits, others as doubles.
        """
        ...

    def multiply(self, a: Array, b: Array, out: Array, dtype: str, *, turn_a: bool, turn_b: bool) -> None:
        """Set ``out`` to a b, matrices of ``dtype``; transposed where turned. ``out`` is ``dtype`` or its master.

        Rows may lie further apart than they are long. Arrays of three dimensions are as many products.
        """
        ...

    def convolution_plan(
        self, what: str, geometry: ConvolutionGeometry, batch: int, *, biased: bool
    ) -> Plan | None:
        """Return cuDNN's plan, built once; None where cuDNN has no engine, which only a "fused" one may lack.

        See :mod:`hpcdl.nn.kernels.cupy.cudnn_plans`, also for the numbers of arrays.
        """
        ...

    def batch_norm_plan(self, what: str, geometry: BatchNormGeometry, batch: int) -> Plan | None:
        """Return cuDNN's plan, built once; None where cuDNN has no engine."""
        ...

    def pooled(self, work: Callable[[], T]) -> T:
        """Return what ``work`` returns, its memory taken from where recordings take theirs."""
        ...

    def capture(self, work: Callable[[], T]) -> tuple[Callable[[], None], T]:
        """Do ``work`` and record it: return what does it again, in the same memory, and what it returned.

        Recordings share memory: what one lets go of another takes, so they must be started in the order in which
        they were recorded.
        """
        ...

    def execute(self, plan: Plan, arrays: dict[int, Array]) -> None:
        """Start a plan on arrays by their numbers."""
        ...


def room(device: Device, like: Array, dtype: str) -> Array:
    """Return an array as large as ``like`` for values of ``dtype``."""
    return device.empty(like.shape, carrier(dtype))
