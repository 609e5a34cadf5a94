"""Parameters as the libraries want them: in the activations' precision, at aligned addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdl.nn.kernels.cupy.device import is_aligned, over
from hpcdl.nn.precision import carrier, master

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array
    from hpcdl.nn.kernels.cupy.device import Device


class Shadow:
    """A parameter's copy, where its own place in the flat vector will not do.

    Flat vectors put tensors one after the other, so that a view begins at any multiple of its element.
    """

    def __init__(self, device: Device, dtype: str) -> None:
        self._device = device
        self._dtype = dtype
        self._copy: Array | None = None

    def of(self, parameter: Array) -> Array:
        """Return the parameter, or a copy as it is now, overwritten by the next call."""
        if self._fits(parameter):
            return parameter
        self._copy = self._room(parameter)
        self._device.launch(
            "cast", "narrow", self._dtype, over(parameter.size), parameter, self._copy, parameter.size
        )
        return self._copy

    def landing(self, gradient: Array) -> Array:
        """Return where to write a gradient; :meth:`land` brings it to its place."""
        return gradient if self._fits(gradient) else self._device.empty(gradient.shape, carrier(self._dtype))

    def land(self, written: Array, gradient: Array) -> None:
        """Copy what was written into :meth:`landing`'s array to its place."""
        if written is not gradient:
            self._device.launch(
                "cast", "widen", self._dtype, over(gradient.size), written, gradient, gradient.size
            )

    def _fits(self, array: Array) -> bool:
        return self._dtype == master(self._dtype) and is_aligned(self._device.address(array))

    def _room(self, parameter: Array) -> Array:
        if self._copy is None or self._copy.shape != parameter.shape:
            return self._device.empty(parameter.shape, carrier(self._dtype))
        return self._copy
