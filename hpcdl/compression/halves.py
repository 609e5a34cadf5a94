"""Compressors that round gradients to 16-bit numbers, and vectors of these that add in float32."""

from collections.abc import Iterator
from typing import Any, ClassVar, Final, Self

import numpy as np

from hpcdl.compression.parts.protocol import Compression, Layout, check_finite, kernels
from hpcdl.fabric.comm import Array, Device

LARGEST: Final = {"float16": "65504, the largest number of float16", "bfloat16": "the largest number of bfloat16"}


class HalfVector(np.ndarray[tuple[int, ...], np.dtype[Any]]):
    """A vector of 16-bit ``numbers``. ``+=`` adds in float32 and rounds, to even on ties, as numpy does.

    Slices, and buffers borrowed in its likeness, are of this class too, so that schemes add as they add other
    vectors.
    """

    numbers: ClassVar[str]

    def __iadd__(self, addend: Array) -> Self:  # type: ignore[misc, override]
        add = getattr(kernels(None, "halves"), f"add_{self.numbers}")
        add(bits(self), bits(addend))
        return self


class Float16(HalfVector):
    """A vector of float16 numbers. Sums beyond 65519 are infinite, without a warning."""

    numbers = "float16"


class BFloat16(HalfVector):
    """A vector of bfloat16 numbers: upper halves of float32 numbers; numpy sees uint16.

    A library that sums its memory itself would add integers.
    """

    numbers = "bfloat16"


def zeros(size: int, numbers: str, device: Device | None = None) -> Array:
    """Return a vector of ``size`` zeros of the type ``numbers``; a GPU's own vectors of float16 add as these."""
    if device is not None:
        return device.zeros((size,), numbers)
    dtype, kind = (np.float16, Float16) if numbers == "float16" else (np.uint16, BFloat16)
    return np.zeros(size, dtype).view(kind)


def bits(vector: Array) -> Array:
    """Return a view of 16-bit numbers as plain uint16."""
    view = vector.view(np.uint16)
    return np.asarray(view) if isinstance(view, np.ndarray) else view


class Halves:
    """16-bit numbers on the wire; sums and parameters stay float32.

    A rank's gradient is rounded to the nearest number. Where a scheme adds, it adds in float32 and rounds the
    partial sum, because it sends 16 bits on.
    """

    numbers: str
    """float16 or bfloat16."""

    def __init__(self, layout: Layout) -> None:
        compiled = kernels(layout.device, "halves")
        self._narrow = getattr(compiled, f"narrow_{self.numbers}")
        self._widen = getattr(compiled, f"widen_{self.numbers}")
        self.state: dict[str, Array] = {self.numbers: zeros(layout.size, self.numbers, layout.device)}

    def rounds(self, span: slice, vector: Array, residual: Array | None, _step: int) -> Iterator[Array]:
        sent = self.state[self.numbers][span]
        numbers = vector.astype(np.float32, copy=False)
        fused = residual is not None and residual.dtype == np.float32
        check_finite(self._narrow(numbers, bits(sent), residual if fused else None))
        if residual is not None and not fused:
            self._widen(bits(sent), numbers)
            np.subtract(vector, numbers, out=residual)
        yield sent
        self.restore(span, sent, vector, _step, fed_back=residual is not None)

    def restore(self, span: slice, sent: Array, vector: Array, step: int, *, fed_back: bool) -> None:  # noqa: ARG002
        numbers = vector if vector.dtype == np.float32 else np.empty_like(vector, dtype=np.float32)
        if not self._widen(bits(sent), numbers):
            raise FloatingPointError(f"the sum exceeds {LARGEST[self.numbers]}")
        if numbers is not vector:
            vector[:] = numbers

    def lengths(self, span: slice) -> list[tuple[int, str]]:
        return [(span.stop - span.start, "float16" if self.numbers == "float16" else "uint16")]


class FP16(Halves):
    """float16 on the wire: 5 bits of exponent, 11 of significand; values beyond 65504 are sent as 65504."""

    numbers = "float16"


class BF16(Halves):
    """bfloat16 on the wire: the exponent of float32, 8 bits of significand."""

    numbers = "bfloat16"


OFFERS: Final = {"fp16": FP16, "bf16": BF16}
TRAITS: Final = {
    "fp16": Compression(error_feedback=False, rounds_values=True, on_device=True),
    "bf16": Compression(error_feedback=False, own_sums=True, rounds_values=True),
}
