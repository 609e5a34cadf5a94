"""Kernels of compressors for NVIDIA GPUs."""
