"""Kernels for NVIDIA GPUs: cuDNN convolutions and batch normalisation, cuBLAS products, others in ``cuda/``.

::

    windows.py, elementwise.py        ops: allocate, choose the grid, launch
          │ Device (device.py): empty, launch, multiply, convolution_plan, execute
          ├── gpu.py            CuPy's arrays and compiler, cuBLAS, cuDNN's plans (cudnn_plans.py)
          └── tests/gpu         the same CUDA sources, compiled by g++, so that all ops are tested without a GPU

Activations may have 16 bits (bfloat16 as uint16). All work goes to one stream in order, so no op waits. The one
rule: ops use the protocol ``Device`` only, and kernels use no atomics and no block barriers; sums have a fixed
order. Open ``device.py``, then ``windows.py``.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcdl.nn.backend import Backend


def cupy(*, tf32: bool = True, deterministic: bool = False, graphs: bool = False) -> "Backend":
    """Return the GPU backend, with CuPy and cuDNN.

    ``tf32``: float32 convolutions may multiply with 10 bits of mantissa, as is PyTorch's default; matrix products
    use all 23 bits. ``deterministic``: exclude kernels whose order of additions depends on timing, so that runs
    are repeatable bit by bit. ``graphs``: record each layer's forward and backward as CUDA graphs, for networks
    whose kernels are shorter than their launches.

    ValueError, in one line: CuPy, a driver or a device is missing.
    """
    from hpcdl.nn.kernels.cupy.gpu import backend_on, gpu

    return backend_on(gpu(tf32=tf32, deterministic=deterministic), graphs=graphs)
