"""hpcdl: an MPI-native benchmark suite for distributed deep learning."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

    from hpcdl.trace.schema import Run

__version__ = "0.1.0"


def read(path: str | Path) -> Run:
    """Read a run (its folder, or its ``run.h5``) into pandas frames; see :func:`hpcdl.trace.schema.read`."""
    from hpcdl.trace import schema  # late: worker ranks import this package and must not import h5py

    return schema.read(path)


def summary(*runs: Run | str | Path) -> pd.DataFrame:
    """Return the rows of ``hpcdl report --json`` as a pandas frame: one per case and seed.

    ``runs`` are folders, ``run.h5`` files, or what :func:`read` returned. ``hpcdl/report/README.md`` describes the
    columns. Raises as :func:`hpcdl.report.run.render.renderings`.
    """
    from hpcdl.report.formats.records import frame  # late, as above
    from hpcdl.trace.run import Run

    return frame([run if isinstance(run, Run) else read(run) for run in runs])
