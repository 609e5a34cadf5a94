"""Segments of the flat gradient that have values of their own: tensors, or rows of matrices."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hpcdl.compression.parts.protocol import Layout
    from hpcdl.fabric.comm import Array


class Segments:
    """Boundaries of segments, given by where each starts; a span may cut a segment."""

    def __init__(self, starts: Iterable[int]) -> None:
        self._starts = np.unique(np.fromiter(starts, np.int64))
        self._cuts: dict[tuple[int, int], Array] = {}

    def cuts(self, span: slice) -> Array:
        """Return the boundaries within ``span``, int64 (segments + 1,): from 0 to the span's length."""
        place = (span.start, span.stop)
        if place not in self._cuts:
            inner = self._starts[(self._starts > span.start) & (self._starts < span.stop)] - span.start
            end = [span.stop - span.start][: span.stop > span.start]
            self._cuts[place] = np.concatenate([[0], inner, end], dtype=np.int64, casting="unsafe")
        return self._cuts[place]

    def count(self, span: slice) -> int:
        """Return the number of segments within ``span``."""
        return len(self.cuts(span)) - 1


def tensors(layout: Layout) -> Segments:
    """Return one segment per tensor; the whole gradient without tensors."""
    return Segments(tensor.span.start for tensor in layout.tensors)


def rows(layout: Layout) -> Segments:
    """Return one segment per index of a matrix's or convolution's first axis, and one per vector."""
    return Segments(
        start
        for tensor in layout.tensors
        for start in range(
            tensor.span.start,
            tensor.span.stop,
            max(1, math.prod(tensor.shape[1:] if len(tensor.shape) > 1 else tensor.shape)),
        )
    )
