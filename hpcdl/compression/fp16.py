from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from hpcdl.compression.parts.traits import Compression

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpcdl.compression.parts.protocol import Layout
    from hpcdl.fabric.comm import Array

TRAITS: Final = Compression(error_feedback=False)

LARGEST: Final = 65504.0
"""Largest number of float16."""


class FP16:
    """float16 on the wire: 5 bits of exponent, 11 of significand; sums and parameters stay float32.

    A rank's gradient is rounded to the nearest float16. Where a scheme adds, it adds in float32 and rounds the
    partial sum, because that is what it sends on. Values beyond 65504 are sent as 65504.
    """

    def __init__(self, layout: Layout) -> None:
        self.state: dict[str, Array] = {"float16": np.zeros(layout.size, np.float16)}

    def rounds(self, span: slice, vector: Array, residual: Array | None, _step: int) -> Iterator[Array]:
        """See :class:`hpcdl.compression.parts.protocol.Summable`.

        Raises FloatingPointError for a value that is infinite or not a number, or a sum that is.
        """
        sent = self.state["float16"][span]
        if not np.isfinite(vector).all():
            raise FloatingPointError("a value that is infinite or not a number")
        np.clip(vector, -LARGEST, LARGEST, out=sent, casting="unsafe")
        if residual is not None:
            np.subtract(vector, sent, out=residual)
        yield sent
        vector[:] = sent
        if not np.isfinite(vector).all():
            raise FloatingPointError(f"the sum exceeds {LARGEST:g}, the largest number of float16")

    def lengths(self, span: slice) -> list[tuple[int, str]]:
        """Return the length and the type of the vector."""
        return [(span.stop - span.start, "float16")]
