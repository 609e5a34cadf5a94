"""Boundaries of segments on a device, and of the chunks that are summed at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hpcdl.compression.kernels.lanes import CHUNK

if TYPE_CHECKING:
    from hpcdl.compression.parts.device import Device
    from hpcdl.fabric.comm import Array


class Segments:
    """Segments of one span; see :meth:`hpcdl.compression.parts.segments.Segments.cuts`."""

    def __init__(self, device: Device, cuts: Array) -> None:
        self.host_cuts = cuts
        """Kept so that no other array can get its ``id``, by which :class:`SegmentCache` finds it."""
        self.count = len(cuts) - 1
        counts = -(-np.diff(cuts) // CHUNK)
        self.firsts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        """First chunk of each segment, and the number of chunks, on the host."""
        self.chunks = int(self.firsts[-1])
        segment = np.repeat(np.arange(self.count), counts)
        edges = cuts[segment] + (np.arange(self.chunks) - self.firsts[segment]) * CHUNK
        self.edges = device.asarray(np.append(edges, cuts[-1]))
        """Boundaries of chunks."""
        self.cuts = device.asarray(cuts)
        """Boundaries of segments."""


class SegmentCache:
    """Segments of the spans that a compressor exchanges."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._known: dict[int, Segments] = {}

    def of(self, cuts: Array) -> Segments:
        """Return the segments with these boundaries; a compressor has one array of them per span."""
        if id(cuts) not in self._known:
            self._known[id(cuts)] = Segments(self._device, cuts)
        return self._known[id(cuts)]
