"""Random ternary levels: see :mod:`hpcdl.compression.kernels.ternary`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from hpcdl.compression.kernels.cuda.segments import SegmentCache
from hpcdl.compression.kernels.lanes import LANES
from hpcdl.compression.kernels.ternary import join

if TYPE_CHECKING:
    from hpcdl.compression.parts.device import Device
    from hpcdl.fabric.comm import Array

SOURCE: Final = str(Path(__file__).with_suffix(""))


class Kernels:
    """Kernels on a device; boundaries, totals, scalers and packed codes are on the host."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._segments = SegmentCache(device)

    def moments(self, vector: Array, cuts: Array, totals: Array) -> None:
        """See :func:`hpcdl.compression.kernels.ternary.moments`."""
        device, segments, dtype = self._device, self._segments.of(cuts), str(vector.dtype)
        chunks, edges = segments.chunks, segments.edges
        lanes, moments = device.empty((2, chunks, LANES), "float64"), device.empty((chunks, 2), "float64")
        device.launch(SOURCE, "moment_lanes", dtype, chunks * LANES, vector, edges, lanes, chunks)
        device.launch(SOURCE, "moments_of_chunks", dtype, chunks, lanes, edges, moments, chunks)
        join(device.to_host(moments), segments.firsts, totals)

    def encode(
        self, vector: Array, cuts: Array, scalers: Array, packed: Array, stream: np.uint64, position: int
    ) -> None:
        """See :func:`hpcdl.compression.kernels.ternary.encode`."""
        device, segments = self._device, self._segments.of(cuts)
        bits = device.empty(packed.shape, "uint8")
        where = (vector, segments.cuts, device.asarray(scalers), bits, len(vector), segments.count)
        key = int(stream.astype(np.int64))  # launches pass integers with a sign
        device.launch(SOURCE, "encode", str(vector.dtype), len(packed), *where, key, position)
        packed[:] = device.to_host(bits)

    def decode(self, packed: Array, cuts: Array, scalers: Array, into: Array) -> None:
        """See :func:`hpcdl.compression.kernels.ternary.decode`."""
        device, segments = self._device, self._segments.of(cuts)
        bits = device.asarray(packed)
        arguments = (bits, segments.cuts, device.asarray(scalers), into, len(into), segments.count)
        device.launch(SOURCE, "decode", str(into.dtype), len(packed), *arguments)
