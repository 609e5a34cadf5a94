"""hpcdl: an MPI-native benchmark suite for distributed deep learning."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from hpcdl.trace.schema import Run

__version__ = "0.1.0"


def read(path: str | Path) -> Run:
    """Read a run (its folder, or its ``run.h5``) into pandas frames; see :func:`hpcdl.trace.schema.read`."""
    from hpcdl.trace import schema  # late: worker ranks import this package and must not import h5py

    return schema.read(path)
