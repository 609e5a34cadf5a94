"""A tile of a matrix product with its sums in registers: the innermost loop of every convolution."""

from __future__ import annotations

from typing import Any, Final

from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from hpcdl.nn.kernels.numba.vectors import INDEX, REGISTERS, Registers

VECTORS: Final = 2
"""Registers per row of a tile."""

ROWS: Final = (REGISTERS - VECTORS - 1) // VECTORS
"""Most rows of a tile: two registers hold the right factor, one the left factor, all others sums."""


@intrinsic
def _tile(
    _context: Any, rows: Any, columns: Any, outer: Any, inner: Any,
    a: Any, a_row: Any, a_outer: Any, a_inner: Any, b: Any, b_outer: Any, b_inner: Any,
    start: Any, start_row: Any, c: Any, c_row: Any, floor: Any,
) -> Any:  # fmt: skip
    """Emit :func:`tile` as LLVM instructions."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        height, width, *rest = arguments
        memory = Registers(builder, context.get_value_type(signature.args[-1]))
        end = builder.append_basic_block("end")
        shapes = [(VECTORS, False), *((vectors, True) for vectors in range(VECTORS, 0, -1))]
        for vectors, is_masked in shapes:
            fits = builder.append_basic_block(f"vectors{vectors}")
            otherwise = builder.append_basic_block("narrower")
            edge = INDEX((vectors if not is_masked else vectors - 1) * memory.count)
            builder.cbranch(builder.icmp_signed("==" if not is_masked else ">", width, edge), fits, otherwise)
            builder.position_at_end(fits)
            choice = builder.switch(height, end)
            for number in range(1, ROWS + 1):
                case = builder.append_basic_block(f"rows{number}")
                choice.add_case(INDEX(number), case)
                builder.position_at_end(case)
                _emit(memory, number, vectors, width if is_masked else None, rest)
                builder.branch(end)
            builder.position_at_end(otherwise)
        builder.branch(end)
        builder.position_at_end(end)
        return context.get_dummy_value()

    arguments = (
        rows, columns, outer, inner, a, a_row, a_outer, a_inner, b, b_outer, b_inner,
        start, start_row, c, c_row, floor,
    )  # fmt: skip
    return types.void(*arguments), emit


def _emit(memory: Registers, height: int, width: int, columns: Any, arguments: Any) -> None:
    outer, inner, a, a_row, a_outer, a_inner, b, b_outer, b_inner, start, start_row, c, c_row, floor = arguments
    builder, count = memory.builder, memory.count
    masks: list[Any] = [None] * width
    if columns is not None:
        masks = [memory.mask(builder.sub(columns, INDEX(j * count))) for j in range(width)]
    sums = [[cgutils.alloca_once(builder, memory.vector) for _ in range(width)] for _ in range(height)]
    for i in range(height):
        row = memory.shifted(start, builder.mul(start_row, INDEX(i)))
        for j in range(width):
            builder.store(memory.load(memory.shifted(row, j * count), masks[j]), sums[i][j])
    steps = [builder.mul(a_row, INDEX(i)) for i in range(height)]
    with cgutils.for_range(builder, outer, intp=INDEX) as over:
        a_here = memory.shifted(a, builder.mul(over.index, a_outer))
        b_here = memory.shifted(b, builder.mul(over.index, b_outer))
        with cgutils.for_range(builder, inner, intp=INDEX) as along:
            a_at = memory.shifted(a_here, builder.mul(along.index, a_inner))
            b_at = memory.shifted(b_here, builder.mul(along.index, b_inner))
            right = [memory.load(memory.shifted(b_at, j * count), masks[j]) for j in range(width)]
            for i in range(height):
                left = memory.broadcast(memory.shifted(a_at, steps[i]))
                for j in range(width):
                    builder.store(memory.fma(left, right[j], builder.load(sums[i][j])), sums[i][j])
    least = memory.spread(floor)
    for i in range(height):
        row = memory.shifted(c, builder.mul(c_row, INDEX(i)))
        for j in range(width):
            total = builder.load(sums[i][j])
            total = builder.select(builder.fcmp_ordered("<", total, least), least, total)  # propagates NaN
            memory.store(total, memory.shifted(row, j * count), masks[j])


@njit(nogil=True, cache=True, inline="never")
def tile(
    rows: int, columns: int, outer: int, inner: int,
    a: int, a_row: int, a_outer: int, a_inner: int, b: int, b_outer: int, b_inner: int,
    start: int, start_row: int, c: int, c_row: int, floor: Any,
) -> None:  # fmt: skip
    """Set c[i, j] = max(floor, start[i, j] + sum over o, k of a[i, o, k] b[o, k, j]).

    Here i < ``rows`` <= :data:`ROWS`, j < ``columns`` <= :data:`VECTORS` registers, o < ``outer``, k < ``inner``.
    Arrays are addresses; strides are in elements, along j they are 1. ``floor`` has the elements' type: 0 for a
    ReLU, otherwise minus infinity. ``start`` may equal ``c``, or be a row of biases with ``start_row`` 0.
    """
    _tile(
        rows, columns, outer, inner, a, a_row, a_outer, a_inner, b, b_outer, b_inner,
        start, start_row, c, c_row, floor,
    )  # fmt: skip


@njit(nogil=True, cache=True)
def divide_rows(count: int) -> Any:
    """Divide rows into tiles of nearly equal height; return (tiles, least height, tiles with one more row)."""
    pieces = -(-count // ROWS)
    return pieces, count // pieces, count % pieces
