"""Vector instructions in LLVM: loads, stores and products on memory given by address.

The main kernels use them because compiled scalar loops over many arrays reach half the speed or less: the compiler
must assume that the arrays overlap.
"""

from collections.abc import Sequence
from typing import Any, Final

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.base import BaseContext
from numba.core.types import Type
from numba.core.typing import Signature
from numba.extending import intrinsic

from hpcdl.compiled import Intrinsic, njit
from hpcdl.fabric.comm import Array
from hpcdl.nn.geometry import Pair, Shape

Counts = tuple[int, ...]
"""Sizes, or an address and strides in elements. Compiled functions pass a tuple as its numbers."""


def _register_bytes() -> int:
    features = llvm.get_host_cpu_features()
    if features.get("avx512f"):
        return 64
    return 32 if features.get("avx2") else 16


REGISTER_BYTES: Final = _register_bytes()
"""Width of a vector register, in bytes."""
REGISTERS: Final = 16 if REGISTER_BYTES == 32 else 32
"""Number of vector registers: 16 with AVX2, 32 with AVX-512 and NEON."""
INDEX: Final = ir.IntType(64)
"""LLVM type of addresses and counts."""


class Registers:
    """Builder of instructions on vectors of ``element``, which are appended to ``builder``."""

    def __init__(self, builder: ir.IRBuilder, element: ir.Type) -> None:
        self.builder = builder
        self.element = element
        self.size = 4 if isinstance(element, ir.FloatType) else 8
        self.count = REGISTER_BYTES // self.size
        self.vector = ir.VectorType(element, self.count)
        self.zeros = ir.Constant(self.vector, [0.0] * self.count)

    def shifted(self, address: ir.Value, elements: ir.Value | int) -> ir.Value:
        """Return the address advanced by ``elements``, an LLVM value or an int."""
        if isinstance(elements, int):
            return self.builder.add(address, INDEX(elements * self.size))
        return self.builder.add(address, self.builder.mul(elements, INDEX(self.size)))

    def spread(self, scalar: ir.Value) -> ir.Value:
        many = ir.VectorType(scalar.type, self.count)
        undefined = ir.Constant(many, ir.Undefined)
        first = self.builder.insert_element(undefined, scalar, ir.IntType(32)(0))
        order = ir.Constant(ir.VectorType(ir.IntType(32), self.count), [0] * self.count)
        return self.builder.shuffle_vector(first, undefined, order)

    def broadcast(self, address: ir.Value) -> ir.Value:
        return self.spread(self.builder.load(self.builder.inttoptr(address, self.element.as_pointer())))

    def mask(self, left: ir.Value) -> ir.Value:
        """Return a mask of the first ``left`` lanes; ``left`` may be negative or exceed the number of lanes."""
        steps = ir.Constant(ir.VectorType(INDEX, self.count), list(range(self.count)))
        return self.builder.icmp_signed("<", steps, self.spread(left))

    def load(self, address: ir.Value, mask: ir.Value | None = None) -> ir.Value:
        """Load a vector; masked lanes are zero."""
        pointer = self.builder.inttoptr(address, self.vector.as_pointer())
        if mask is None:
            return self.builder.load(pointer, align=self.size)
        kind = ir.FunctionType(self.vector, [pointer.type, ir.IntType(32), mask.type, self.vector])
        return self._call("llvm.masked.load", kind, [pointer, ir.IntType(32)(self.size), mask, self.zeros], ".p0")

    def store(self, value: ir.Value, address: ir.Value, mask: ir.Value | None = None) -> None:
        """Store a vector; masked lanes are not written."""
        pointer = self.builder.inttoptr(address, self.vector.as_pointer())
        if mask is None:
            self.builder.store(value, pointer, align=self.size)
            return
        kind = ir.FunctionType(ir.VoidType(), [self.vector, pointer.type, ir.IntType(32), mask.type])
        self._call("llvm.masked.store", kind, [value, pointer, ir.IntType(32)(self.size), mask], ".p0")

    def fma(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        return self._call("llvm.fma", ir.FunctionType(self.vector, [self.vector] * 3), [a, b, c])

    def _call(self, name: str, kind: ir.FunctionType, arguments: Sequence[ir.Value], suffix: str = "") -> ir.Value:
        full = f"{name}.v{self.count}f{self.size * 8}{suffix}"
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, kind, full), arguments)


VECTORS: Final = 2
"""Registers per row of a tile."""
ROWS: Final = (REGISTERS - VECTORS - 1) // VECTORS
"""Most rows of a tile: two registers hold the right factor, one the left factor, all others sums."""


@intrinsic
def _tile(_context: object, shape: Type, a: Type, b: Type, start: Type, c: Type, floor: Type) -> Intrinsic:
    """Emit :func:`tile` as LLVM instructions."""

    def emit(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, arguments: Sequence[ir.Value]
    ) -> ir.Value:
        (height, width, *sums), *operands = (cgutils.unpack_tuple(builder, value) for value in arguments[:-1])
        rest = (sums, *operands, arguments[-1])
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

    return types.void(shape, a, b, start, c, floor), emit


def _emit(memory: Registers, height: int, width: int, columns: ir.Value | None, operands: Sequence[Any]) -> None:
    (outer, inner), (a, a_row, a_outer, a_inner), (b, b_outer, b_inner), (start, start_row), into, floor = operands
    (c, c_row), builder, count = into, memory.builder, memory.count
    masks: list[ir.Value | None] = [None] * width
    if columns is not None:
        masks = [memory.mask(builder.sub(columns, INDEX(j * count))) for j in range(width)]
    # LLVM keeps these variables in registers, because height and width are known in each case of the switch
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


# Not inlined: the code of all heights and widths is long, and one copy of it serves all kernels.
@njit(nogil=True, cache=True, inline="never")
def tile(shape: Counts, a: Counts, b: Counts, start: Pair, c: Pair, floor: float) -> None:
    """Set c[i, j] = max(floor, start[i, j] + sum over o, k of a[i, o, k] b[o, k, j]).

    ``shape`` has the numbers of i, at most :data:`ROWS`, of j, at most :data:`VECTORS` registers, of o and of k.
    An operand is its address and its strides, in elements: ``a`` along i, o, k, ``b`` along o, k, ``start`` and
    ``c`` along i; along j they are 1. ``floor`` has the elements' type: 0 for a ReLU, otherwise minus infinity.
    ``start`` may equal ``c``, or be a row of biases with stride 0.
    """
    _tile(shape, a, b, start, c, floor)


@njit(nogil=True, cache=True)
def divide_rows(count: int) -> tuple[int, int, int]:
    """Divide rows into tiles of nearly equal height; return (tiles, least height, tiles with one more row)."""
    pieces = -(-count // ROWS)
    return pieces, count // pieces, count % pieces


def as_pixels(x: Array) -> Array:
    """Return a view of activations (N, ..., C) as (pixels, C); N may be 0."""
    return x.reshape(x.size // x.shape[-1], x.shape[-1])


def panels(terms: int, outputs: int, like: Array) -> Shape:
    """Return the shape of packed weights (panels, terms, width); the width is that of a tile."""
    width = VECTORS * REGISTER_BYTES // like.itemsize
    return -(-outputs // width), terms, width


@njit(nogil=True, cache=True)
def pack(weight: Array, packed: Array, first: int, last: int) -> None:
    """Pack panels ``first`` to ``last`` of (groups, K, R S, C) to (groups, panels, R S C, width).

    Zeros follow the last filter.
    """
    groups, filters, taps, channels = weight.shape
    width = packed.shape[3]
    for g in range(groups):
        for panel in range(first, last):
            for t in range(taps):
                for begin in range(0, channels, 16):  # small blocks stay in the cache
                    for j in range(width):
                        k = panel * width + j
                        for c in range(begin, min(begin + 16, channels)):
                            packed[g, panel, t * channels + c, j] = weight[g, k, t, c] if k < filters else 0


@njit(nogil=True, cache=True)
def pack_reversed(weight: Array, packed: Array, first: int, last: int) -> None:
    """Pack panels ``first`` to ``last`` of (groups, K, R, S, C) to (a, b, groups, panels, R' S' K, width).

    Entry (a, b) has the taps a, a + stride, ... in reverse order.
    """
    groups, filters, kernel_rows, kernel_columns, channels = weight.shape
    vertical, horizontal, _, _, _, width = packed.shape
    for a in range(vertical):
        taps = -(-(kernel_rows - a) // vertical)
        for b in range(horizontal):
            others = -(-(kernel_columns - b) // horizontal)
            for g in range(groups):
                for panel in range(first, last):
                    for i in range(taps):
                        for j in range(others):
                            r, s = a + vertical * (taps - 1 - i), b + horizontal * (others - 1 - j)
                            for k in range(filters):
                                row = packed[a, b, g, panel, (i * others + j) * filters + k]
                                for n in range(width):
                                    c = panel * width + n
                                    row[n] = weight[g, k, r, s, c] if c < channels else 0


@njit(nogil=True, cache=True)
def copy_region(image: Array, channel: int, top: int, left: int, to: Array) -> None:
    """Copy the region of an image at (top, left), from ``channel`` on, with zeros outside the image."""
    height, width, _ = image.shape
    first, last = max(-left, 0), min(width - left, to.shape[1])
    for i in range(to.shape[0]):
        h = top + i
        if h < 0 or h >= height:
            to[i] = 0
            continue
        to[i, :first] = 0
        to[i, last:] = 0
        for j in range(first, last):
            # slices, because numba does not vectorise loops over indices that are sums
            source, pixel = image[h, left + j, channel : channel + to.shape[2]], to[i, j]
            for c in range(to.shape[2]):
                pixel[c] = source[c]


@njit(nogil=True, cache=True)
def rectify_region(output: Array, channel: int, top: int, left: int, gradient: Array) -> None:
    """Set the gradient of a region, as in :func:`copy_region`, to zero where the ReLU's output is not positive."""
    height, width, _ = output.shape
    zero = gradient.dtype.type(0)
    for i in range(max(-top, 0), min(height - top, gradient.shape[0])):
        for j in range(max(-left, 0), min(width - left, gradient.shape[1])):
            y, pixel = output[top + i, left + j, channel : channel + gradient.shape[2]], gradient[i, j]
            for c in range(gradient.shape[2]):
                pixel[c] = pixel[c] if y[c] > zero else zero
