"""Kernel of momentum correction: see :mod:`hpcdl.compression.kernels.momentum_correction`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from hpcdl.compression.parts.device import Device
    from hpcdl.fabric.comm import Array

SOURCE: Final = str(Path(__file__).with_suffix(""))


class Kernels:
    """Kernels on a device."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def correct(self, gradient: Array, velocity: Array, accumulated: Array, momentum: Any, scale: Any) -> None:
        """See :func:`hpcdl.compression.kernels.momentum_correction.correct`."""
        n, dtype = len(gradient), str(gradient.dtype)
        factors = (float(momentum), float(scale))
        self._device.launch(SOURCE, "correct", dtype, n, gradient, velocity, accumulated, n, *factors)
