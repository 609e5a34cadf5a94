"""Kernels for NVIDIA GPUs: cuDNN for convolutions and batch normalisation, cuBLAS for products, else ``cuda/``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcdl.nn.backend import Backend


def cupy(*, tf32: bool = True, deterministic: bool = False, graphs: bool = False) -> Backend:
    """GPU kernels with CuPy and cuDNN; has not run on a GPU yet.

    ``tf32`` lets float32 convolutions multiply with 10 bits of mantissa, as PyTorch does by default; products of
    matrices have all 23, as there. ``deterministic`` leaves out what adds in an order that depends on timing, so
    that a run repeats to the bit. ``graphs`` records every layer's forward and backward as CUDA graphs at first
    use, for networks whose kernels are shorter than their launches.

    Raises ValueError, in one line, where CuPy, a driver or a device is missing.
    """
    from hpcdl.nn.kernels.cupy.gpu import gpu

    device = gpu(tf32=tf32, deterministic=deterministic)

    from hpcdl.nn.kernels.cupy.backend import backend_on

    return backend_on(device, graphs=graphs)
