"""Runs in a folder of run folders; files that are no runs are named and left out."""

from __future__ import annotations

import datetime as dt
import os
import signal
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hpcdl.analysis.series_file import is_kept, read_series
from hpcdl.trace.record import TraceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hpcdl.analysis.series import RunSeries

FEW: Final = 20
"""Runs without kept series that are read in this process; more are read on all cores."""


def read_archive(
    folder: Path, progress: Callable[[int, int], None] | None = None
) -> tuple[list[RunSeries], list[str]]:
    """Return the runs below a folder, and one line for each that cannot be read. Raises OSError for the folder.

    ``progress`` is called with the number of runs read and of all runs, after each that has no kept series.
    """
    paths = list(_runs(folder))
    new = [path for path in paths if not is_kept(path)]
    read = dict[Path, "RunSeries | str"]()
    for path, result in zip(new, _results(new), strict=True):
        read[path] = result
        if progress is not None:
            progress(len(read), len(new))
    runs, skipped = [], []
    for path in paths:
        series = read.get(path) or _read(path)
        if isinstance(series, str):
            skipped.append(series)
        elif _is_date(series.date):
            runs.append(series)
        else:
            skipped.append(f"{path}: has {f'the wrong date {series.date!a}' if series.date else 'no date'}")
    return runs, skipped


def _read(path: Path) -> RunSeries | str:
    """Return the series of a run, or in one line the reason why it cannot be read."""
    try:
        return read_series(path, any_schema=True)
    except TraceError as error:
        return str(error)


def _results(paths: Sequence[Path]) -> Iterator[RunSeries | str]:
    """Yield :func:`_read` of each path; each series that was read is kept, also if this is interrupted."""
    if len(paths) <= FEW:
        yield from map(_read, paths)
        return
    with ProcessPoolExecutor(initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN)) as pool:
        try:
            yield from pool.map(_read, paths)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


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
