"""Kernels of compressors for NVIDIA GPUs: each module launches those of the ``.cu`` file of the same name.

They compute the bits of the numba kernels of the same name. They use no block barriers and no atomics, so that
tests can run them on a CPU. Entropy codes stay on the host: their input is small.
"""
