from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from hpcdl.compression.parts import float16
from hpcdl.compression.parts.checks import check_finite
from hpcdl.compression.parts.device import kernels
from hpcdl.compression.parts.traits import Compression

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpcdl.compression.parts.protocol import Layout
    from hpcdl.fabric.comm import Array

TRAITS: Final = Compression(error_feedback=False, rounds_values=True, on_device=True)


class FP16:
    """float16 on the wire: 5 bits of exponent, 11 of significand; sums and parameters stay float32.

    A rank's gradient is rounded to the nearest float16. Where a scheme adds, it adds in float32 and rounds the
    partial sum, because it sends 16 bits on. Values beyond 65504 are sent as 65504.
    """

    def __init__(self, layout: Layout) -> None:
        halves = kernels(layout.device, "halves")
        self._narrow = halves.narrow_float16
        self._widen = halves.widen_float16
        self.state: dict[str, Array] = {"float16": float16.vector(layout.size, layout.device)}

    def rounds(self, span: slice, vector: Array, residual: Array | None, _step: int) -> Iterator[Array]:
        """See :class:`hpcdl.compression.parts.protocol.Summable`.

        Raises FloatingPointError for a value that is infinite or not a number, or a sum that is.
        """
        sent = self.state["float16"][span]
        bits = float16.bits(sent)
        numbers = vector.astype(np.float32, copy=False)
        fused = residual is not None and residual.dtype == np.float32
        check_finite(self._narrow(numbers, bits, residual if fused else None))
        if residual is not None and not fused:
            np.subtract(vector, sent, out=residual)
        yield sent
        self.restore(span, sent, vector, _step, fed_back=residual is not None)

    def restore(self, span: slice, sent: Array, vector: Array, step: int, *, fed_back: bool) -> None:  # noqa: ARG002
        """See :class:`hpcdl.compression.parts.protocol.PointToPoint`."""
        numbers = vector if vector.dtype == np.float32 else np.empty_like(vector, dtype=np.float32)
        if not self._widen(float16.bits(sent), numbers):
            raise FloatingPointError("the sum exceeds 65504, the largest number of float16")
        if numbers is not vector:
            vector[:] = numbers

    def lengths(self, span: slice) -> list[tuple[int, str]]:
        """Return the length and the type of the vector."""
        return [(span.stop - span.start, "float16")]
