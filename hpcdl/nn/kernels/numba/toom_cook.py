"""Transforms of Winograd convolution: matrices from interpolation points, as vector instructions.

Correlating r taps with r + m - 1 numbers gives m results. Interpolation at r + m - 1 points needs r + m - 1
products instead of r m (Toom-Cook; Winograd 1980; Lavin & Gray 2015, arXiv 1509.09308, sections 2 and 4):

    y = A^T [(G g) * (B^T d)]          in two dimensions      Y = A^T [(G g G^T) * (B^T d B)] A.

The points are 0, 3/4, -3/4, 3/2, -3/2 and infinity. Their float32 error is 1.1e-6 of the result's norm; the usual
points 0, 1, -1, 2, -2 give 2.5e-6 (128 channels, normal numbers). Pairs p and -p halve the work. Six points serve
3 taps with m = 4 and 5 taps with m = 2.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from hpcdl.nn.kernels.numba.vectors import INDEX, Registers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Matrix = list[list[float]]

POINTS: Final = (Fraction(0), Fraction(3, 4), Fraction(-3, 4), Fraction(3, 2), Fraction(-3, 2))
"""The finite points; infinity is the last."""

SIZE: Final = len(POINTS) + 1
"""Number of points; also the side of an input tile."""


def matrices(taps: int) -> tuple[Matrix, Matrix, Matrix]:
    """Return A^T (m, 6), G (6, taps) and B^T (6, 6) for m = 7 - taps."""
    results = SIZE + 1 - taps
    scales = [_product([[p - q] for q in POINTS if q != p])[0] for p in POINTS]
    a = [[float(p**j) for p in POINTS] + [float(j == results - 1)] for j in range(results)]
    g = [[float(p**j / scale) for j in range(taps)] for p, scale in zip(POINTS, scales, strict=True)]
    g.append([float(j == taps - 1) for j in range(taps)])
    b = [[float(v) for v in _product([[-q, Fraction(1)] for q in POINTS if q != p])] + [0.0] for p in POINTS]
    b.append([float(v) for v in _product([[-q, Fraction(1)] for q in POINTS])])
    return a, g, b


def _product(polynomials: Sequence[Sequence[Fraction]]) -> list[Fraction]:
    """Multiply polynomials; coefficients start with the constant term."""
    total = [Fraction(1)]
    for factor in polynomials:
        longer = [Fraction(0)] * (len(total) + len(factor) - 1)
        for i, x in enumerate(total):
            for j, y in enumerate(factor):
                longer[i + j] += x * y
        total = longer
    return total


def transposed(matrix: Matrix) -> Matrix:
    """Return the transposed matrix."""
    return [list(column) for column in zip(*matrix, strict=True)]


def _two_sided_product(matrix: Matrix, *, adds: bool = False) -> Callable[..., None]:
    """Return a function that computes M X M^T for strided vectors X[i][j]; ``adds``: add to the destination.

    Its arguments are (source, row, column, destination, row, column, count, zero): addresses, strides in elements,
    the number of contiguous channels, which are transformed alike, and a zero of their type.
    """

    @intrinsic
    def transform(
        _context: Any, source: Any, row: Any, column: Any, destination: Any, to_row: Any, to_column: Any,
        count: Any, zero: Any,
    ) -> Any:  # fmt: skip
        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            memory = Registers(builder, context.get_value_type(signature.args[-1]))
            total = arguments[6]
            width = INDEX(memory.count)
            full = builder.sdiv(total, width)
            with cgutils.for_range(builder, full, intp=INDEX) as loop:
                _emit(memory, matrix, adds, arguments, builder.mul(loop.index, width), None)
            done = builder.mul(full, width)
            left = builder.sub(total, done)
            with builder.if_then(builder.icmp_signed(">", left, INDEX(0)), likely=False):
                _emit(memory, matrix, adds, arguments, done, memory.mask(left))
            return context.get_dummy_value()

        return types.void(source, row, column, destination, to_row, to_column, count, zero), emit

    return transform  # type: ignore[no-any-return]


def _emit(memory: Registers, matrix: Matrix, adds: bool, arguments: Any, channel: Any, mask: Any) -> None:
    source, row, column, destination, to_row, to_column, *_ = arguments
    builder = memory.builder

    def place(base: Any, i: int, row: Any, j: int, column: Any) -> Any:
        steps = builder.add(builder.mul(row, INDEX(i)), builder.mul(column, INDEX(j)))
        return memory.shifted(base, builder.add(steps, channel))

    size = len(matrix[0])
    columns = [
        _apply(memory, matrix, [memory.load(place(source, i, row, j, column), mask) for i in range(size)])
        for j in range(size)
    ]
    for i in range(len(matrix)):
        for j, value in enumerate(_apply(memory, matrix, [column[i] for column in columns])):
            address = place(destination, i, to_row, j, to_column)
            memory.store(builder.fadd(memory.load(address, mask), value) if adds else value, address, mask)


def _apply(memory: Registers, matrix: Matrix, values: Sequence[Any]) -> list[Any]:
    """Multiply a matrix with a column of vectors.

    Points p and -p give pairs of rows, or of columns, that differ in the sign of every second number. Common terms
    of a pair are computed once.
    """
    builder = memory.builder
    if _paired(matrix):
        results = {0: _combined(memory, matrix[0], values), SIZE - 1: _combined(memory, matrix[-1], values)}
        for i in (1, 3):
            even = _combined(memory, [v if j % 2 == 0 else 0.0 for j, v in enumerate(matrix[i])], values)
            odd = _combined(memory, [v if j % 2 == 1 else 0.0 for j, v in enumerate(matrix[i])], values)
            sum_, difference = builder.fadd(even, odd), builder.fsub(even, odd)
            # the row of -p may be the negated alternating row
            is_negative = next(
                a * b < 0
                for j, (a, b) in enumerate(zip(matrix[i], matrix[i + 1], strict=True))
                if j % 2 == 0 and a
            )
            results[i], results[i + 1] = sum_, builder.fneg(difference) if is_negative else difference
        return [results[i] for i in range(SIZE)]
    if _paired(transposed(matrix)):
        sums = {i: builder.fadd(values[i], values[i + 1]) for i in (1, 3)}
        differences = {i: builder.fsub(values[i], values[i + 1]) for i in (1, 3)}
        results_ = []
        for line in matrix:
            chosen = [values[0]]
            for i in (1, 3):
                chosen += [sums[i] if line[i] == line[i + 1] else differences[i], memory.zeros]
            chosen.append(values[-1])
            results_.append(_combined(memory, [v if j not in {2, 4} else 0.0 for j, v in enumerate(line)], chosen))
        return results_
    return [_combined(memory, line, values) for line in matrix]


def _paired(matrix: Matrix) -> bool:
    """Return True if rows 1 and 2, and rows 3 and 4, belong to a point and its negative."""
    if len(matrix) != SIZE:
        return False
    for i in (1, 3):
        ratios = {b / a * (-1) ** j for j, (a, b) in enumerate(zip(matrix[i], matrix[i + 1], strict=True)) if a}
        zeros = all(bool(a) == bool(b) for a, b in zip(matrix[i], matrix[i + 1], strict=True))
        if not zeros or ratios not in ({1.0}, {-1.0}):
            return False
    return True


def _combined(memory: Registers, factors: Sequence[float], values: Sequence[Any]) -> Any:
    """Return the sum of factor x vector; factors 0 and 1 need no product."""
    builder, total = memory.builder, None
    for factor, value in sorted(zip(factors, values, strict=True), key=lambda pair: pair[0] != 1):
        if factor == 0:
            continue
        constant = ir.Constant(memory.vector, [factor] * memory.count)
        if total is None:
            total = value if factor == 1 else builder.fmul(value, constant)
        else:
            total = builder.fadd(total, value) if factor == 1 else memory.fma(value, constant, total)
    return memory.zeros if total is None else total


_A3, _G3, _B = matrices(3)
_A5, _G5, _ = matrices(5)

_input = _two_sided_product(_B)
_input_gradient = _two_sided_product(transposed(_B), adds=True)
_filter3, _filter5 = _two_sided_product(_G3), _two_sided_product(_G5)
_filter_gradient3, _filter_gradient5 = _two_sided_product(transposed(_G3)), _two_sided_product(transposed(_G5))
_output3, _output5 = _two_sided_product(_A3), _two_sided_product(_A5)
_output_gradient3, _output_gradient5 = _two_sided_product(transposed(_A3)), _two_sided_product(transposed(_A5))


@njit(nogil=True, cache=True, inline="never")
def input_tile(
    source: int, row: int, column: int, to: int, to_row: int, to_column: int, count: int, zero: Any
) -> None:
    """Transform 6 x 6 inputs to left factors, B^T d B; arguments as in :func:`_two_sided_product`."""
    _input(source, row, column, to, to_row, to_column, count, zero)


@njit(nogil=True, cache=True, inline="never")
def input_gradient_tile(
    source: int, row: int, column: int, to: int, to_row: int, to_column: int, count: int, zero: Any
) -> None:
    """Transform 6 x 6 gradients back, B p B^T, and add them to the input gradient."""
    _input_gradient(source, row, column, to, to_row, to_column, count, zero)


@njit(nogil=True, cache=True, inline="never")
def filter_tile(
    taps: int, source: int, row: int, column: int, to: int, to_row: int, to_column: int, count: int, zero: Any
) -> None:
    """Transform the taps of a filter to 6 x 6 right factors, G g G^T."""
    if taps == 3:
        _filter3(source, row, column, to, to_row, to_column, count, zero)
    else:
        _filter5(source, row, column, to, to_row, to_column, count, zero)


@njit(nogil=True, cache=True, inline="never")
def filter_gradient_tile(
    taps: int, source: int, row: int, column: int, to: int, to_row: int, to_column: int, count: int, zero: Any
) -> None:
    """Transform 6 x 6 numbers to the gradient of the taps, G^T u G."""
    if taps == 3:
        _filter_gradient3(source, row, column, to, to_row, to_column, count, zero)
    else:
        _filter_gradient5(source, row, column, to, to_row, to_column, count, zero)


@njit(nogil=True, cache=True, inline="never")
def output_tile(
    taps: int, source: int, row: int, column: int, to: int, to_row: int, to_column: int, count: int, zero: Any
) -> None:
    """Transform 6 x 6 products to m x m results, A^T p A."""
    if taps == 3:
        _output3(source, row, column, to, to_row, to_column, count, zero)
    else:
        _output5(source, row, column, to, to_row, to_column, count, zero)


@njit(nogil=True, cache=True, inline="never")
def output_gradient_tile(
    taps: int, source: int, row: int, column: int, to: int, to_row: int, to_column: int, count: int, zero: Any
) -> None:
    """Transform m x m gradients to 6 x 6, A y A^T."""
    if taps == 3:
        _output_gradient3(source, row, column, to, to_row, to_column, count, zero)
    else:
        _output_gradient5(source, row, column, to, to_row, to_column, count, zero)
