"""hpcdl: an MPI-native benchmark suite for distributed deep learning."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from hpcdl.trace.run import Run

__version__ = "1.1.0"


def read(path: str | Path) -> Run:
    """Read a run into pandas frames: its folder, its ``run.h5``, or a folder of ``--launches``, pooled.

    See :class:`hpcdl.trace.run.Run`; the column ``launch`` of ``cases`` is the number of the launch. Raises
    TraceError for a run that cannot be read, and ValueError for launches of different suites or machines.
    """
    from hpcdl.analysis.run.pooling import read_pooled  # late: worker ranks import this package, without h5py

    return read_pooled([Path(path)])


def summary(*runs: Run | str | Path, all_columns: bool = False) -> pd.DataFrame:
    """Return the rows of ``hpcdl report --json`` as a pandas frame: one per case and seed.

    ``runs`` are paths as :func:`read` takes them, or runs that it returned. The frame has the columns with a
    value, or with ``all_columns`` those of every kind of case; ``hpcdl/report/README.md`` describes them.

    Raises as :func:`hpcdl.report.render.renderings`.
    """
    from hpcdl.report.render import frame  # late, as above
    from hpcdl.trace.run import Run

    return frame([run if isinstance(run, Run) else read(run) for run in runs], all_columns=all_columns)
