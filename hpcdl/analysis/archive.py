"""Runs in a folder of run folders; files that are no runs are named and left out."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path
from typing import TYPE_CHECKING

from hpcdl.analysis.series_file import read_series
from hpcdl.trace.record import TraceError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpcdl.analysis.series import RunSeries


def read_archive(folder: Path) -> tuple[list[RunSeries], list[str]]:
    """Return the runs below a folder, and one line for each that cannot be read. Raises OSError for the folder."""
    found, skipped = [], []
    for path in _runs(folder):
        try:
            one = read_series(path, any_schema=True)
        except TraceError as error:
            skipped.append(str(error))
            continue
        if _is_date(one.date):
            found.append(one)
        else:
            skipped.append(f"{path}: has {f'the wrong date {one.date!a}' if one.date else 'no date'}")
    return found, skipped


def _is_date(text: str) -> bool:
    """Return True for a date and time with its offset from UTC, ISO 8601."""
    try:
        return dt.datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


def _runs(folder: Path) -> Iterator[Path]:
    """Yield run folders, and HDF5 files outside of them; symbolic links to folders are not followed."""

    def stop(error: OSError) -> None:
        if Path(str(error.filename)) == folder:
            raise error

    for name, folders, files in os.walk(folder, onerror=stop):
        if "run.h5" in files or "parts" in folders:
            folders.clear()
            yield Path(name)
            continue
        folders.sort()
        yield from (Path(name) / file for file in sorted(files) if file.endswith(".h5") and file[0] != ".")
