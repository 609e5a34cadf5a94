"""Conversions between float32 and 16-bit numbers: see :mod:`hpcdl.compression.kernels.halves`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from hpcdl.compression.parts.device import Device
    from hpcdl.fabric.comm import Array

SOURCE: Final = str(Path(__file__).with_suffix(""))


class Kernels:
    """Kernels on a device."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def narrow_float16(self, numbers: Array, sent: Array, residual: Array | None) -> bool:
        """See :func:`hpcdl.compression.kernels.halves.narrow_float16`."""
        wrong = self._device.zeros((1,), "int32")
        arguments = (numbers, sent.view("float16"), residual, wrong, len(numbers))
        self._device.launch(SOURCE, "narrow", "float16", len(numbers), *arguments)
        return not self._device.to_host(wrong)[0]

    def widen_float16(self, sent: Array, numbers: Array) -> bool:
        """See :func:`hpcdl.compression.kernels.halves.widen_float16`."""
        wrong = self._device.zeros((1,), "int32")
        arguments = (sent.view("float16"), numbers, wrong, len(sent))
        self._device.launch(SOURCE, "widen", "float16", len(sent), *arguments)
        return not self._device.to_host(wrong)[0]
