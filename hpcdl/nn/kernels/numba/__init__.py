"""Kernels for CPUs, compiled by numba; ops that are not here are numpy's.

Activations (N, H, W, C) come in as numpy arrays and leave so. What makes these ops fast::

    convolution.py    reads windows of the image through strides, without a copy (im2col)  ─┐
    winograd.py       3x3 and 5x5: 36 products per tile instead of 144 or 100              ─┼─> vectors.tile
    toom_cook.py      its transforms, computed from interpolation points                    │
    vectors.py        a tile of sums in registers, as LLVM instructions                    <┘
    memory_bound.py   normalisation: one pass for mean and variance; pooling: the index of the maximum in a byte

A layer is cut into one part per thread (``parts.py``). Each kernel therefore exists twice: alone, and in parts,
which run in numba's own threads. The one rule: the number of parts depends only on the number of threads, so that
every run adds in the same order. Open ``vectors.py`` first.
"""

from hpcdl.nn.backend import Backend


def numba() -> Backend:
    """Return the numba backend: register tiles, Winograd, fused normalisation, pooling."""
    from hpcdl.nn.kernels.numba.backend import BACKEND

    return BACKEND
