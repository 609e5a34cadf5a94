"""Compressors of gradients: one or a family per file. They compute on arrays and never communicate.

::

    gradient + residual ──> compressor ──> what is sent ──> scheme or gathering ──> sum of all ranks
                               │
                               └── what is not sent stays in the vector, and joins the next gradient

Who moves the messages and owns the residuals is :mod:`hpcdl.training.parts.compressed`. A compressor follows one
of three protocols, by what a sum needs (``parts/protocol.py``): a ``Summable`` yields vectors that any scheme
adds, a ``Selector`` picks entries, an ``Encoder`` writes messages that ranks gather.

``codes/`` has the entropy codes of positions, ``kernels/`` loops over entries for CPUs and GPUs. Open
``sparsification.py`` first.
"""
