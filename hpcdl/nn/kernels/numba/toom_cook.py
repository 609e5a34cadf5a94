"""Transforms of Winograd convolution: matrices from interpolation points, as vector instructions.

Correlating r taps with r + m - 1 numbers gives m results. Interpolation at r + m - 1 points needs r + m - 1
products instead of r m (Toom-Cook; Winograd 1980; Lavin & Gray 2015, arXiv 1509.09308, sections 2 and 4):

    y = A^T [(G g) * (B^T d)]          in two dimensions      Y = A^T [(G g G^T) * (B^T d B)] A.

The points are 0, 3/4, -3/4, 3/2, -3/2 and infinity. Their float32 error is 1.1e-6 of the result's norm; the usual
points 0, 1, -1, 2, -2 give 2.5e-6 (128 channels, normal numbers). Six points serve 3 taps with m = 4 and 5 taps
with m = 2.
"""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.base import BaseContext
from numba.core.types import Type
from numba.core.typing import Signature
from numba.extending import intrinsic
from numpy.typing import NDArray

from hpcdl.compiled import Intrinsic, njit
from hpcdl.fabric.comm import Array
from hpcdl.nn.kernels.numba.vectors import INDEX, Counts, Registers, copy_region

Matrix = NDArray[np.float64]

POINTS: Final = (0.0, 0.75, -0.75, 1.5, -1.5)
"""The finite points; infinity is the last."""
SIZE: Final = len(POINTS) + 1
"""Number of points; also the side of an input tile."""
PAIRS: Final = np.array(
    [
        [1, 0, 0, 0, 0, 0],
        [0, 1, 1, 0, 0, 0],
        [0, 1, -1, 0, 0, 0],
        [0, 0, 0, 1, 1, 0],
        [0, 0, 0, 1, -1, 0],
        [0, 0, 0, 0, 0, 1],
    ]
)
"""Sums and differences of the numbers of a point and its negative."""


def matrices(taps: int) -> tuple[Matrix, Matrix, Matrix]:
    """Return A^T (m, 6), G (6, taps) and B^T (6, 6) for m = 7 - taps."""
    results = SIZE + 1 - taps
    others = [[q for q in POINTS if q != p] for p in POINTS]
    a = [[p**j for p in POINTS] + [j == results - 1] for j in range(results)]
    scales = [np.prod([p - q for q in rest]) for p, rest in zip(POINTS, others, strict=True)]
    g = [[p**j / scale for j in range(taps)] for p, scale in zip(POINTS, scales, strict=True)]
    b = [[*np.poly(rest)[::-1], 0] for rest in others]  # coefficients of (x - q)(x - q') ..., the constant first
    return np.array(a), np.array([*g, [j == taps - 1 for j in range(taps)]]), np.array([*b, np.poly(POINTS)[::-1]])


def factors(matrix: Matrix) -> list[Matrix]:
    """Return matrices whose product is ``matrix``, the right one first, with the fewest operations.

    Points p and -p give pairs of rows, or of columns, that differ in the sign of every second number.
    """

    def operations(factor: Matrix) -> int:
        return int(np.count_nonzero(factor) - (factor == 1).any(axis=1).sum())

    choices = [[matrix]]
    inverse = np.linalg.inv(PAIRS)
    if len(matrix) == SIZE:
        choices.append([inverse @ matrix, PAIRS])
    if matrix.shape[1] == SIZE:
        choices.append([PAIRS, matrix @ inverse])
    return min(choices, key=lambda choice: sum(map(operations, choice)))


def _two_sided_product(three: Matrix, five: Matrix | None = None, *, adds: bool = False) -> Callable[..., None]:
    """Return a function that computes M X M^T for strided vectors X[i][j]; ``adds``: add to the destination.

    M is ``three`` for 3 taps and ``five`` for 5; without it ``three`` for both. The arguments are (taps, source,
    destination, count, zero): source and destination are an address and the strides of i and j in elements, count
    is the number of contiguous channels, which are transformed alike, and zero has their type.
    """

    @intrinsic
    def transform(
        _context: object, taps: Type, source: Type, destination: Type, count: Type, zero: Type
    ) -> Intrinsic:
        def emit(
            context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: Sequence[ir.Value]
        ) -> ir.Value:
            memory = Registers(builder, context.get_value_type(signature.args[-1]))
            if five is None:
                _emit_channels(memory, three, adds, arguments)
            else:
                with builder.if_else(builder.icmp_signed("==", arguments[0], INDEX(3))) as (then, otherwise):
                    with then:
                        _emit_channels(memory, three, adds, arguments)
                    with otherwise:
                        _emit_channels(memory, five, adds, arguments)
            return context.get_dummy_value()

        return types.void(taps, source, destination, count, zero), emit

    return transform  # type: ignore[no-any-return]


def _emit_channels(memory: Registers, matrix: Matrix, adds: bool, arguments: Sequence[ir.Value]) -> None:
    builder, total, width = memory.builder, arguments[3], INDEX(memory.count)
    full = builder.sdiv(total, width)
    with cgutils.for_range(builder, full, intp=INDEX) as loop:
        _emit(memory, matrix, adds, arguments, builder.mul(loop.index, width), None)
    done = builder.mul(full, width)
    left = builder.sub(total, done)
    with builder.if_then(builder.icmp_signed(">", left, INDEX(0)), likely=False):
        _emit(memory, matrix, adds, arguments, done, memory.mask(left))


def _emit(
    memory: Registers,
    matrix: Matrix,
    adds: bool,
    arguments: Sequence[ir.Value],
    channel: ir.Value,
    mask: ir.Value | None,
) -> None:
    builder = memory.builder
    source, destination = (cgutils.unpack_tuple(builder, operand) for operand in arguments[1:3])

    def place(operand: Sequence[ir.Value], i: int, j: int) -> ir.Value:
        base, row, column = operand
        steps = builder.add(builder.mul(row, INDEX(i)), builder.mul(column, INDEX(j)))
        return memory.shifted(base, builder.add(steps, channel))

    def product(values: Sequence[ir.Value]) -> Sequence[ir.Value]:
        for factor in factors(matrix):
            values = [_combined(memory, line, values) for line in factor.tolist()]
        return values

    size = matrix.shape[1]
    columns = [product([memory.load(place(source, i, j), mask) for i in range(size)]) for j in range(size)]
    for i in range(len(matrix)):
        for j, value in enumerate(product([column[i] for column in columns])):
            address = place(destination, i, j)
            memory.store(builder.fadd(memory.load(address, mask), value) if adds else value, address, mask)


def _combined(memory: Registers, numbers: Sequence[float], values: Sequence[ir.Value]) -> ir.Value:
    """Return the sum of number x vector; numbers 0 and 1 need no product."""
    builder, total = memory.builder, None
    for number, value in sorted(zip(numbers, values, strict=True), key=lambda pair: pair[0] != 1):
        if number == 0:
            continue
        constant = ir.Constant(memory.vector, [number] * memory.count)
        if total is None:
            total = value if number == 1 else builder.fmul(value, constant)
        else:
            total = builder.fadd(total, value) if number == 1 else memory.fma(value, constant, total)
    return memory.zeros if total is None else total


_A3, _G3, _B = matrices(3)
_A5, _G5, _ = matrices(5)

input_tile = _two_sided_product(_B)
"""B^T d B: 6 x 6 inputs to left factors."""
input_gradient_tile = _two_sided_product(_B.T, adds=True)
filter_tile = _two_sided_product(_G3, _G5)
"""G g G^T: the taps of a filter to 6 x 6 right factors."""
filter_gradient_tile = _two_sided_product(_G3.T, _G5.T)
output_tile = _two_sided_product(_A3, _A5)
"""A^T p A: 6 x 6 products to m x m results."""
output_gradient_tile = _two_sided_product(_A3.T, _A5.T)


@njit(nogil=True, cache=True)
def transform_filters(
    taps: int, weight: Array, strides: Counts, outputs: int, u: Array, begin: int, end: int
) -> None:
    """Fill u (36, panels, terms, width) with G g G^T, terms from ``begin`` to ``end``.

    ``strides`` of ``weight``, in elements: of a tap's row, of its column, and of a term.
    """
    row, column, term = strides
    _, panels, terms, width = u.shape
    item, zero = u.itemsize, u.dtype.type(0)
    distance = panels * terms * width
    if outputs % width:
        u[:, panels - 1, begin:end] = 0
    for panel in range(panels):
        for t in range(begin, end):
            taken = (weight.ctypes.data + (t * term + panel * width) * item, row, column)
            into = (u.ctypes.data + (panel * terms + t) * width * item, SIZE * distance, distance)
            filter_tile(taps, taken, into, min(width, outputs - panel * width), zero)


@njit(nogil=True, cache=True)
def transform_inputs(
    image: Array, corner: Counts, strip: Array, step: int, across: int, first: int, v: Array
) -> None:
    """Transform a row of an image's tiles to v (36, tiles, C), from tile ``first`` on, by way of ``strip``.

    ``corner``: first channel, and the image's row and column under the strip's first.
    """
    copy_region(image, corner[0], corner[1], corner[2], strip)
    channels, item, zero = strip.shape[2], strip.itemsize, strip.dtype.type(0)
    distance = v.shape[1] * channels
    for t in range(across):
        taken = (strip.ctypes.data + t * step * channels * item, strip.shape[1] * channels, channels)
        into = (v.ctypes.data + (first + t) * channels * item, SIZE * distance, distance)
        input_tile(0, taken, into, channels, zero)
