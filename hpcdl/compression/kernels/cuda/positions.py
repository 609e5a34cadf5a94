"""Kernels on positions of entries: see :mod:`hpcdl.compression.kernels.positions`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from hpcdl.compression.parts.device import Device
    from hpcdl.fabric.comm import Array

SOURCE: Final = str(Path(__file__).with_suffix(""))


class Kernels:
    """Kernels on vectors of a device; positions and values are on the host."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def take(self, vector: Array, indices: Array) -> Array:
        """See :func:`hpcdl.compression.kernels.positions.take`."""
        device, n, dtype = self._device, len(indices), str(vector.dtype)
        values = device.empty((n,), dtype)
        device.launch(SOURCE, "take", dtype, n, vector, device.asarray(indices), values, n)
        return device.to_host(values)

    def put(self, indices: Array, values: Array, into: Array) -> None:
        """See :func:`hpcdl.compression.kernels.positions.put`."""
        self._write("put", indices, values, into)

    def add(self, indices: Array, values: Array, into: Array) -> None:
        """See :func:`hpcdl.compression.kernels.positions.add`."""
        self._write("add", indices, values, into)

    def _write(self, kernel: str, indices: Array, values: Array, into: Array) -> None:
        device, n = self._device, len(indices)
        arguments = (into, device.asarray(indices), device.asarray(values), n)
        device.launch(SOURCE, kernel, str(into.dtype), n, *arguments)
