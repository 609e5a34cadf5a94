from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from hpcdl.compression.parts import bfloat16
from hpcdl.compression.parts.traits import Compression

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpcdl.compression.parts.protocol import Layout
    from hpcdl.fabric.comm import Array

TRAITS: Final = Compression(error_feedback=False, own_sums=True)


class BF16:
    """bfloat16 on the wire: the exponent of float32, 8 bits of significand; sums and parameters stay float32.

    A rank's gradient is rounded to the nearest bfloat16. Where a scheme adds, it adds in float32 and rounds the
    partial sum, because that is what it sends on.
    """

    def __init__(self, layout: Layout) -> None:
        self.state: dict[str, Array] = {"bfloat16": bfloat16.vector(layout.size)}

    def rounds(self, span: slice, vector: Array, residual: Array | None, _step: int) -> Iterator[Array]:
        """See :class:`hpcdl.compression.parts.protocol.Summable`.

        Raises FloatingPointError for a value that is infinite or not a number, or a sum that is.
        """
        sent = self.state["bfloat16"][span]
        bfloat16.assign(sent, vector)
        if not (np.isfinite(vector).all() and np.isfinite(bfloat16.widened(sent)).all()):
            raise FloatingPointError("a value that is infinite, too large, or not a number")
        if residual is not None:
            np.subtract(vector, bfloat16.widened(sent), out=residual)
        yield sent
        vector[:] = bfloat16.widened(sent)
        if not np.isfinite(vector).all():
            raise FloatingPointError("the sum exceeds the largest number of bfloat16")

    def lengths(self, span: slice) -> list[tuple[int, str]]:
        """Return the length and the type of the vector."""
        return [(span.stop - span.start, "uint16")]
