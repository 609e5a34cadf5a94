"""EF-signSGD: signs times the mean magnitude, with error feedback (Karimireddy et al. 2019)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hpcdl.compression.parts.protocol import Compression
from hpcdl.compression.parts.segments import tensors
from hpcdl.compression.parts.two_values import TwoValues

if TYPE_CHECKING:
    from hpcdl.compression.parts.protocol import Layout
    from hpcdl.fabric.comm import Array

TRAITS: Final = Compression(both_ways=True, on_device=True, title="Karimireddy 2019")


class EFSign(TwoValues):
    """Signs, times the mean magnitude of each tensor; a zero counts as positive.

    A message has one scale per tensor, or per part of a tensor within the span, and one bit per entry. A server
    encodes the sum again (Zheng et al. 2019).
    """

    def __init__(self, layout: Layout) -> None:
        super().__init__(tensors(layout), layout, 1, _magnitudes)


def _magnitudes(totals: Array, lengths: Array) -> Array:
    """Return the mean magnitude of each segment, (segments, 1)."""
    return ((totals[:, 1] - totals[:, 0]) / lengths)[:, None]
