"""Loops over the entries of a gradient, compiled by numba."""
