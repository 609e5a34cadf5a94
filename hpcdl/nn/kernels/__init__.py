"""Kernels: the arithmetic of layers, one folder per array library; a folder's name is a backend's name.

A layer asks the backend for an op, once, with a geometry: sizes, strides and dtype, but no batch size
(:mod:`hpcdl.nn.geometry`). The op then gets arrays::

    geometry ──> backend.convolution ──> op      y = op.forward(x, weights)
                                                 dx = op.backward(dy, weights, needs_dx)

``numpy`` is the reference: all tests compare with it. ``numba`` replaces its slow ops by compiled loops for CPUs.
``cupy`` has all ops for NVIDIA GPUs.

The one rule: an op owns the arrays that it returns, until its next forward; it writes into nothing else but the
gradients in ``weights`` (:mod:`hpcdl.nn.backend`). Open ``numpy/__init__.py`` first.
"""
