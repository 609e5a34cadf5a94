"""Dropout."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

import numpy as np

from hpcdl.nn.kernels.cupy.device import empty_like, grid_over

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.fabric.comm import Array
    from hpcdl.nn.geometry import DropoutGeometry
    from hpcdl.nn.kernels.cupy.device import Device


class Dropout:
    """y = x * mask with mask 0 or 1 / (1 - ratio), from a counter-based generator whose key is on the device.

    Each forward increments the counter on the device, so that recorded graphs draw new masks too.
    """

    def __init__(self, device: Device, geometry: DropoutGeometry) -> None:
        self._device = device
        self._dtype = geometry.dtype
        self._ratio = float(geometry.ratio)
        self._state = device.zeros((3,), "uint32")
        self._saved: tuple[Array, ...] = ()

    def reseed(self, key: Sequence[int]) -> None:
        """See :class:`hpcdl.nn.ops.Noise`."""
        low, high = np.random.SeedSequence(list(key)).generate_state(2)
        self._device.launch("dropout", "seed", self._dtype, grid_over(1), self._state, int(low), int(high))

    def continued(self) -> Dropout:
        """See :class:`hpcdl.nn.ops.Noise`; both increment one counter."""
        other = copy(self)
        other._saved = ()  # noqa: SLF001 - of the same class
        return other

    def forward(self, x: Array) -> Array:
        """See :class:`hpcdl.nn.ops.Noise`."""
        self._saved = ()
        y, mask = empty_like(self._device, x, self._dtype), self._device.empty(x.shape, "uint8")
        grid = grid_over(-(-x.size // 4))
        self._device.launch(
            "dropout", "dropout_forward", self._dtype, grid, x, y, mask, self._state, x.size, self._ratio
        )
        self._device.launch("dropout", "advance", self._dtype, grid_over(1), self._state)
        self._saved = (mask,)
        return y

    def backward(self, dy: Array) -> Array:
        """See :class:`hpcdl.nn.ops.Noise`."""
        (mask,), self._saved = self._saved, ()
        dx = empty_like(self._device, dy, self._dtype)
        grid = grid_over(dy.size)
        self._device.launch("dropout", "dropout_backward", self._dtype, grid, dy, mask, dx, dy.size, self._ratio)
        return dx
