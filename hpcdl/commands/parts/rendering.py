"""Render reports of run folders."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def rendered(folders: Sequence[Path], forms: Sequence[str], *, launches: bool) -> list[str]:
    """Return the report of the runs in ``folders`` in each of ``forms``; with ``launches`` the runs are pooled.

    Raises UsageError.
    """
    from hpcdl.analysis.run.points import AmbiguousCaseError
    from hpcdl.analysis.run.pool_launches import pool
    from hpcdl.report.run.render import renderings
    from hpcdl.suite import UsageError
    from hpcdl.trace.record import TraceError
    from hpcdl.trace.schema import read

    try:
        runs = [read(folder) for folder in folders]
        return renderings([pool(runs)] if launches else runs, forms)
    except (TraceError, AmbiguousCaseError, ValueError) as error:
        raise UsageError(str(error)) from None
