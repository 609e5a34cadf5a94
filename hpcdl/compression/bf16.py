from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hpcdl.compression.parts.halves import Halves
from hpcdl.compression.parts.protocol import Compression

if TYPE_CHECKING:
    from hpcdl.compression.parts.protocol import Layout

TRAITS: Final = Compression(error_feedback=False, own_sums=True, rounds_values=True)


class BF16(Halves):
    """bfloat16 on the wire: the exponent of float32, 8 bits of significand."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout, "bfloat16")
