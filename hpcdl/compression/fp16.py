from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hpcdl.compression.parts.halves import Halves
from hpcdl.compression.parts.protocol import Compression

if TYPE_CHECKING:
    from hpcdl.compression.parts.protocol import Layout

TRAITS: Final = Compression(error_feedback=False, rounds_values=True, on_device=True)


class FP16(Halves):
    """float16 on the wire: 5 bits of exponent, 11 of significand; values beyond 65504 are sent as 65504."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout, "float16")
