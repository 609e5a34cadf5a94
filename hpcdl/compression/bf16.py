from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from hpcdl.compression.parts import bfloat16
from hpcdl.compression.parts.checks import check_finite
from hpcdl.compression.parts.traits import Compression

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpcdl.compression.parts.protocol import Layout
    from hpcdl.fabric.comm import Array

TRAITS: Final = Compression(error_feedback=False, own_sums=True, rounds_values=True)


class BF16:
    """bfloat16 on the wire: the exponent of float32, 8 bits of significand; sums and parameters stay float32.

    A rank's gradient is rounded to the nearest bfloat16. Where a scheme adds, it adds in float32 and rounds the
    partial sum, because it sends 16 bits on.
    """

    def __init__(self, layout: Layout) -> None:
        from hpcdl.compression.kernels import halves  # late: listing compressors must not load numba

        self._narrow = halves.narrow_bfloat16
        self._widen = halves.widen_bfloat16
        self.state: dict[str, Array] = {"bfloat16": bfloat16.vector(layout.size)}

    def rounds(self, span: slice, vector: Array, residual: Array | None, _step: int) -> Iterator[Array]:
        """See :class:`hpcdl.compression.parts.protocol.Summable`.

        Raises FloatingPointError for a value that is infinite or not a number, or a sum that is.
        """
        sent = self.state["bfloat16"][span]
        bits = np.asarray(sent)
        numbers = vector.astype(np.float32, copy=False)
        fused = residual is not None and residual.dtype == np.float32
        check_finite(self._narrow(numbers, bits, residual if fused else None))
        if residual is not None and not fused:
            self._widen(bits, numbers)
            np.subtract(vector, numbers, out=residual)
        yield sent
        self.restore(span, bits, vector, _step, fed_back=residual is not None)

    def restore(self, span: slice, sent: Array, vector: Array, step: int, *, fed_back: bool) -> None:  # noqa: ARG002
        """See :class:`hpcdl.compression.parts.protocol.PointToPoint`."""
        numbers = vector if vector.dtype == np.float32 else np.empty(len(vector), np.float32)
        if not self._widen(np.asarray(sent), numbers):
            raise FloatingPointError("the sum exceeds the largest number of bfloat16")
        if numbers is not vector:
            vector[:] = numbers

    def lengths(self, span: slice) -> list[tuple[int, str]]:
        """Return the length and the type of the vector."""
        return [(span.stop - span.start, "uint16")]
