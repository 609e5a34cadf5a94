"""One bit per entry, and two values per segment: see :mod:`hpcdl.compression.kernels.two_values`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from hpcdl.compression.kernels.cuda.segments import SegmentCache
from hpcdl.compression.kernels.lanes import LANES, add_chunks

if TYPE_CHECKING:
    from hpcdl.compression.parts.device import Device
    from hpcdl.fabric.comm import Array

SOURCE: Final = str(Path(__file__).with_suffix(""))


class Kernels:
    """Kernels on a device; boundaries, totals, values and packed bits are on the host."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._segments = SegmentCache(device)

    def sums(self, vector: Array, cuts: Array, totals: Array) -> None:
        """See :func:`hpcdl.compression.kernels.two_values.sums`."""
        device, segments, dtype = self._device, self._segments.of(cuts), str(vector.dtype)
        chunks, edges = segments.chunks, segments.edges
        lanes, sums = device.empty((3, chunks, LANES), "float64"), device.empty((chunks, 3), "float64")
        device.launch(SOURCE, "sum_lanes", dtype, chunks * LANES, vector, edges, lanes, chunks)
        device.launch(SOURCE, "sum_chunks", dtype, 3 * chunks, lanes, edges, sums, chunks)
        add_chunks(device.to_host(sums), segments.firsts, totals)

    def encode(self, vector: Array, cuts: Array, values: Array, packed: Array) -> None:
        """See :func:`hpcdl.compression.kernels.two_values.encode`."""
        device, segments = self._device, self._segments.of(cuts)
        bits = device.empty(packed.shape, "uint8")
        arguments = (vector, segments.cuts, device.asarray(values), bits, len(vector), segments.count)
        device.launch(SOURCE, "encode", str(vector.dtype), len(packed), *arguments)
        packed[:] = device.to_host(bits)

    def decode(self, packed: Array, cuts: Array, values: Array, into: Array) -> None:
        """See :func:`hpcdl.compression.kernels.two_values.decode`."""
        device, segments = self._device, self._segments.of(cuts)
        bits = device.asarray(packed)
        arguments = (bits, segments.cuts, device.asarray(values), into, len(into), segments.count)
        device.launch(SOURCE, "decode", str(into.dtype), len(packed), *arguments)
