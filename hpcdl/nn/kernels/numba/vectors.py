"""Vector instructions in LLVM: loads, stores and products on memory given by address.

The main kernels use them because compiled scalar loops over many arrays reach half the speed or less: the compiler
must assume that the arrays overlap.
"""

from __future__ import annotations

from typing import Any, Final

import llvmlite.binding as llvm
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic


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


@intrinsic
def lanes(_context: Any, zero: Any) -> Any:
    """Return how many numbers of the type of ``zero`` fit a register."""

    def emit(_context: Any, _builder: Any, _signature: Any, _arguments: Any) -> Any:
        return INDEX(REGISTER_BYTES // (zero.bitwidth // 8))

    return types.intp(zero), emit


class Registers:
    """Builder of instructions on vectors of ``element``, which are appended to ``builder``."""

    def __init__(self, builder: Any, element: Any) -> None:
        self.builder = builder
        self.element = element
        self.size = 4 if isinstance(element, ir.FloatType) else 8
        """Bytes per element."""
        self.count = REGISTER_BYTES // self.size
        """Elements per register."""
        self.vector = ir.VectorType(element, self.count)
        self.zeros = ir.Constant(self.vector, [0.0] * self.count)

    def shifted(self, address: Any, elements: Any) -> Any:
        """Return the address advanced by ``elements``, an LLVM value or an int."""
        if isinstance(elements, int):
            return self.builder.add(address, INDEX(elements * self.size))
        return self.builder.add(address, self.builder.mul(elements, INDEX(self.size)))

    def spread(self, scalar: Any) -> Any:
        """Return a vector with ``scalar`` in all lanes."""
        many = ir.VectorType(scalar.type, self.count)
        undefined = ir.Constant(many, ir.Undefined)
        first = self.builder.insert_element(undefined, scalar, ir.IntType(32)(0))
        order = ir.Constant(ir.VectorType(ir.IntType(32), self.count), [0] * self.count)
        return self.builder.shuffle_vector(first, undefined, order)

    def broadcast(self, address: Any) -> Any:
        """Load one element into all lanes."""
        return self.spread(self.builder.load(self.builder.inttoptr(address, self.element.as_pointer())))

    def mask(self, left: Any) -> Any:
        """Return a mask of the first ``left`` lanes; ``left`` may be negative or exceed the number of lanes."""
        steps = ir.Constant(ir.VectorType(INDEX, self.count), list(range(self.count)))
        return self.builder.icmp_signed("<", steps, self.spread(left))

    def load(self, address: Any, mask: Any = None) -> Any:
        """Load a vector; masked lanes are zero."""
        pointer = self.builder.inttoptr(address, self.vector.as_pointer())
        if mask is None:
            return self.builder.load(pointer, align=self.size)
        kind = ir.FunctionType(self.vector, [pointer.type, ir.IntType(32), mask.type, self.vector])
        return self._call("llvm.masked.load", kind, [pointer, ir.IntType(32)(self.size), mask, self.zeros], ".p0")

    def store(self, value: Any, address: Any, mask: Any = None) -> None:
        """Store a vector; masked lanes are not written."""
        pointer = self.builder.inttoptr(address, self.vector.as_pointer())
        if mask is None:
            self.builder.store(value, pointer, align=self.size)
            return
        kind = ir.FunctionType(ir.VoidType(), [self.vector, pointer.type, ir.IntType(32), mask.type])
        self._call("llvm.masked.store", kind, [value, pointer, ir.IntType(32)(self.size), mask], ".p0")

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """Return a * b + c with a single rounding."""
        return self._call("llvm.fma", ir.FunctionType(self.vector, [self.vector] * 3), [a, b, c])

    def _call(self, name: str, kind: Any, arguments: list[Any], suffix: str = "") -> Any:
        full = f"{name}.v{self.count}f{self.size * 8}{suffix}"
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, kind, full), arguments)


@intrinsic
def _copy(_context: Any, source: Any, to: Any, count: Any, zero: Any) -> Any:
    """Emit :func:`copy` as LLVM instructions."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        memory = Registers(builder, context.get_value_type(signature.args[-1]))
        begin, end, total, _ = arguments
        width = INDEX(memory.count)
        full = builder.sdiv(total, width)
        with cgutils.for_range(builder, full, intp=INDEX) as loop:
            place = builder.mul(loop.index, width)
            memory.store(memory.load(memory.shifted(begin, place)), memory.shifted(end, place))
        done = builder.mul(full, width)
        left = builder.sub(total, done)
        with builder.if_then(builder.icmp_signed(">", left, INDEX(0)), likely=False):
            mask = memory.mask(left)
            memory.store(memory.load(memory.shifted(begin, done), mask), memory.shifted(end, done), mask)
        return context.get_dummy_value()

    return types.void(source, to, count, zero), emit


@njit(nogil=True, cache=True)
def copy(source: int, to: int, count: int, zero: Any) -> None:
    """Copy ``count`` numbers of the type of ``zero`` from one address to another."""
    _copy(source, to, count, zero)
