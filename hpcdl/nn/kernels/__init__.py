"""Kernels, one folder per backend; a folder with a ``backend`` module is selectable by its name."""
