"""Loops over the entries of a gradient, compiled by numba, and the same for NVIDIA GPUs.

A compressor of ``hpcdl/compression`` decides; a module here, of its subject, does the passes over the vector::

    two_values.py, random_levels.py  sums per segment, then bits packed into bytes   (both use reproducible.py)
    entries.py                       magnitudes: samples, largest entries
    halves.py, low_rank.py           16-bit numbers, orthonormal columns
    integer_codes.py                 bit streams of the entropy codes

``cuda_launchers.py`` has a class per module, with the same functions, for vectors in the memory of a GPU.

The one rule: the same bits on every machine, whose sums and random numbers are in ``reproducible.py``. Open
``two_values.py`` first.
"""
