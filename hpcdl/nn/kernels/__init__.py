"""Kernels, one folder per backend; its ``__init__`` offers a function of the folder's name."""
