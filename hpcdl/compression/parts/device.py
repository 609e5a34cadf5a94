"""Memory and kernels of the device that holds a gradient."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array

KERNELS = "hpcdl.compression.kernels"


class Device(Protocol):
    """Properties of :class:`hpcdl.nn.kernels.cupy.device.Device` that compressors depend on."""

    def empty(self, shape: tuple[int, ...], dtype: str) -> Array:
        """Return an uninitialised array."""
        ...

    def zeros(self, shape: tuple[int, ...], dtype: str) -> Array:
        """Return an array of zeros."""
        ...

    def asarray(self, array: Array) -> Array:
        """Return a copy of a host array on the device."""
        ...

    def to_host(self, array: Array) -> Array:
        """Return a copy on the host, after all launched work is done."""
        ...

    def launch(self, source: str, kernel: str, dtype: str, grid: int, *arguments: Array | float | None) -> None:
        """Launch ``kernel`` of the file ``source``, without its suffix, on ``grid`` threads."""
        ...


def kernels(device: Device | None, name: str) -> Any:
    """Return the kernels ``name`` for vectors on ``device``; numba's for the host's memory, None.

    ``kernels/NAME.py`` and a class of ``kernels/cuda/launchers.py`` offer the same functions. Vectors are where
    the gradient is; messages and numbers per segment are on the host. Libraries are loaded here, not when
    compressors are listed.
    """
    if device is None:
        return import_module(f"{KERNELS}.{name}")
    return import_module(f"{KERNELS}.cuda.launchers").launcher(device, name)


def to_device(device: Device | None, array: Array) -> Array:
    """Return a host array where the gradient is."""
    return array if device is None else device.asarray(array)


def to_host(device: Device | None, array: Array) -> Array:
    """Return an array of the gradient's memory on the host."""
    return array if device is None else device.to_host(array)
