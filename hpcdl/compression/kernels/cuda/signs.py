"""Signs of entries, one bit each: see :mod:`hpcdl.compression.kernels.signs`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from hpcdl.compression.parts.device import Device
    from hpcdl.fabric.comm import Array

SOURCE: Final = str(Path(__file__).with_suffix(""))


class Kernels:
    """Kernels on a device; packed bits are on the host."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def encode(self, vector: Array, packed: Array, turn: int) -> bool:
        """See :func:`hpcdl.compression.kernels.signs.encode`."""
        device = self._device
        bits, wrong = device.empty(packed.shape, "uint8"), device.zeros((1,), "int32")
        arguments = (vector, bits, wrong, len(vector), turn)
        device.launch(SOURCE, "encode", str(vector.dtype), len(packed), *arguments)
        packed[:] = device.to_host(bits)
        return not device.to_host(wrong)[0]

    def decode(self, packed: Array, into: Array) -> None:
        """See :func:`hpcdl.compression.kernels.signs.decode`."""
        arguments = (self._device.asarray(packed), into, len(into))
        self._device.launch(SOURCE, "decode", str(into.dtype), len(into), *arguments)
