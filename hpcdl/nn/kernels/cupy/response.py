"""Local response normalisation across channels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdl.nn.kernels.cupy.device import empty_like, grid_over_rows
from hpcdl.nn.precision import master

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array
    from hpcdl.nn.geometry import ResponseGeometry
    from hpcdl.nn.kernels.cupy.device import Device


class ResponseNormalization:
    """y = x scale^-beta with scale = k + alpha / size * (x^2 summed over neighbouring channels)."""

    def __init__(self, device: Device, geometry: ResponseGeometry) -> None:
        self._device = device
        self._geometry = geometry
        self._channels = geometry.shape[-1]
        self._saved: tuple[Array, ...] = ()

    def forward(self, x: Array) -> Array:
        """See :class:`hpcdl.nn.ops.Elementary`."""
        self._saved = ()
        g = self._geometry
        y, scale = empty_like(self._device, x, g.dtype), self._device.empty(x.shape, master(g.dtype))
        rows = x.size // self._channels
        self._device.launch(
            "response",
            "response_forward",
            g.dtype,
            grid_over_rows(rows, self._channels, g.dtype),
            *(x, y, scale, rows, self._channels, g.size, float(g.alpha), float(g.beta), float(g.k)),
        )
        self._saved = (x, y, scale)
        return y

    def backward(self, dy: Array) -> Array:
        """See :class:`hpcdl.nn.ops.Elementary`."""
        (x, y, scale), self._saved = self._saved, ()
        g = self._geometry
        dx = empty_like(self._device, dy, g.dtype)
        rows = dy.size // self._channels
        self._device.launch(
            "response",
            "response_backward",
            g.dtype,
            grid_over_rows(rows, self._channels, g.dtype),
            *(dy, x, y, scale, dx, rows, self._channels, g.size, float(g.alpha), float(g.beta)),
        )
        return dx
