"""Kernels of low-rank matrices: see :mod:`hpcdl.compression.kernels.low_rank`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from hpcdl.compression.kernels import low_rank

if TYPE_CHECKING:
    from hpcdl.compression.parts.device import Device
    from hpcdl.fabric.comm import Array

SOURCE: Final = str(Path(__file__).with_suffix(""))


class Kernels:
    """Kernels on a device."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def orthonormalize(self, columns: Array) -> None:
        """See :func:`hpcdl.compression.kernels.low_rank.orthonormalize`.

        It runs on the host: the matrix is a few columns, and its sums have one order on all machines.
        """
        on_host = self._device.to_host(columns)
        low_rank.orthonormalize(on_host)
        columns[:] = self._device.asarray(on_host)

    def write_product(self, left: Array, right: Array, into: Array) -> None:
        """See :func:`hpcdl.compression.kernels.low_rank.write_product`."""
        (rows, columns), rank = into.shape, left.shape[1]
        self._device.launch(
            SOURCE, "write_product", str(into.dtype), into.size, left, right, into, rows, columns, rank
        )
