"""Copies of parameters for libraries: in the precision of activations, at aligned addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdl.nn.kernels.cupy.device import grid_over, is_aligned
from hpcdl.nn.precision import master, storage_dtype

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array
    from hpcdl.nn.kernels.cupy.device import Device


class ParameterCopy:
    """Copy of a parameter, used where the view of the flat vector is unaligned or has another precision.

    Flat vectors have no padding between tensors, so a view may begin at any multiple of its element size.
    """

    def __init__(self, device: Device, dtype: str) -> None:
        self._device = device
        self._dtype = dtype
        self._copy: Array | None = None

    def current(self, parameter: Array) -> Array:
        """Return the parameter if a library can use it, otherwise a fresh copy, valid until the next call."""
        if self._fits(parameter):
            return parameter
        self._copy = self._copy_for(parameter)
        self._device.launch(
            "cast", "narrow", self._dtype, grid_over(parameter.size), parameter, self._copy, parameter.size
        )
        return self._copy

    def gradient_target(self, gradient: Array) -> Array:
        """Return the gradient if a library can write it, otherwise a new array for :meth:`store_gradient`."""
        return gradient if self._fits(gradient) else self._device.empty(gradient.shape, storage_dtype(self._dtype))

    def store_gradient(self, written: Array, gradient: Array) -> None:
        """Copy the array from :meth:`gradient_target` to ``gradient``, if they differ."""
        if written is not gradient:
            self._device.launch(
                "cast", "widen", self._dtype, grid_over(gradient.size), written, gradient, gradient.size
            )

    def _fits(self, array: Array) -> bool:
        return self._dtype == master(self._dtype) and is_aligned(self._device.address(array))

    def _copy_for(self, parameter: Array) -> Array:
        if self._copy is None or self._copy.shape != parameter.shape:
            return self._device.empty(parameter.shape, storage_dtype(self._dtype))
        return self._copy
