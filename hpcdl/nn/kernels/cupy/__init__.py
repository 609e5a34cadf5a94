"""Kernels for NVIDIA GPUs: cuDNN convolutions and batch normalisation, cuBLAS products, others in ``cuda/``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcdl.nn.backend import Backend


def cupy(*, tf32: bool = True, deterministic: bool = False, graphs: bool = False) -> Backend:
    """Return the GPU backend, with CuPy and cuDNN.

    ``tf32``: float32 convolutions may multiply with 10 bits of mantissa, as is PyTorch's default; matrix products
    use all 23 bits. ``deterministic``: exclude kernels whose order of additions depends on timing, so that runs
    are repeatable bit by bit. ``graphs``: record each layer's forward and backward as CUDA graphs, for networks
    whose kernels are shorter than their launches.

    ValueError, in one line: CuPy, a driver or a device is missing.
    """
    from hpcdl.nn.kernels.cupy.gpu import gpu

    device = gpu(tf32=tf32, deterministic=deterministic)

    from hpcdl.nn.kernels.cupy.backend import backend_on

    return backend_on(device, graphs=graphs)
