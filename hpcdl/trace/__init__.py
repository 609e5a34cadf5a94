"""Trace of a run: the recorder on every rank, the HDF5 files written by rank 0, and their reader."""
