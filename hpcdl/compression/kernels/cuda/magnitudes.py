"""Kernels that search and sample magnitudes: see :mod:`hpcdl.compression.kernels.magnitudes`.

Positions are found in two passes: entries are counted in chunks, and the chunks before a chunk tell where its
positions are written. No thread waits for another.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hpcdl.compression.parts.magnitudes import bits

if TYPE_CHECKING:
    from hpcdl.compression.parts.device import Device
    from hpcdl.fabric.comm import Array

SOURCE: Final = str(Path(__file__).with_suffix(""))
CHUNK: Final = 64
"""Entries, or counts, that a thread reads one after the other."""


class Kernels:
    """Kernels on a device; their results are on the host."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def are_finite(self, vector: Array) -> bool:
        """See :func:`hpcdl.compression.kernels.magnitudes.are_finite`."""
        return self._count(vector, 0)[1]

    def sample(self, vector: Array, found: Array, seed: Any) -> None:
        """See :func:`hpcdl.compression.kernels.magnitudes.sample`."""
        device, dtype = self._device, str(vector.dtype)
        drawn = device.empty(found.shape, dtype)
        start = int(seed.astype(np.int64))  # launches pass integers with a sign
        device.launch(SOURCE, "sample", dtype, len(found), vector, drawn, len(vector), len(found), start)
        found[:] = device.to_host(drawn).view(found.dtype)

    def find(self, vector: Array, threshold: Any, likely: int) -> tuple[Array, bool]:  # noqa: ARG002
        """See :func:`hpcdl.compression.kernels.magnitudes.find`."""
        device, n = self._device, len(vector)
        counts, finite = self._count(vector, int(threshold))
        offsets = self._offsets(counts)
        found = device.empty((int(device.to_host(offsets[-1:])[0]),), "int32")
        arguments = (vector, offsets, found, n, int(threshold))
        device.launch(SOURCE, "collect", str(vector.dtype), -(-n // CHUNK), *arguments)
        return device.to_host(found), finite

    def _count(self, vector: Array, threshold: int) -> tuple[Array, bool]:
        """Return the number of entries of each chunk that reach ``threshold``, and True if all are finite."""
        device, n = self._device, len(vector)
        chunks = -(-n // CHUNK)
        counts, wrong = device.empty((chunks,), "int64"), device.zeros((1,), "int32")
        arguments = (vector, counts, wrong, n, threshold, int(bits(np.inf, vector.dtype)))
        device.launch(SOURCE, "count", str(vector.dtype), chunks, *arguments)
        return counts, not device.to_host(wrong)[0]

    def _offsets(self, counts: Array) -> Array:
        """Return the sums of the counts before each, and of all, (n + 1,): of groups first."""
        device, n = self._device, len(counts)
        groups = -(-n // CHUNK)
        before = device.zeros((1,), "int64")
        if groups > 1:
            sums = device.empty((groups,), "int64")
            device.launch(SOURCE, "sum_groups", "float32", groups, counts, sums, n)
            before = self._offsets(sums)
        offsets = device.zeros((n + 1,), "int64")
        device.launch(SOURCE, "add_before", "float32", groups, counts, before, offsets, n)
        return offsets
