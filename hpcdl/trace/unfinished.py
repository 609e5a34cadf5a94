"""Runs of a suite that ended before all their cases."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from hpcdl.trace import validation
from hpcdl.trace.opening import open_trace
from hpcdl.trace.record import TraceError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def newest_unfinished(runs: Path, suite: str, launches: int = 1) -> Path | None:
    """Return the folder of the most recently written unfinished run of ``suite`` in ``runs``, or None.

    With several ``launches``, a run is a folder of folders ``launch-1``, ``launch-2``, ... A run without a
    finished case does not count, because it has nothing to resume.
    """
    by_age = sorted(((_written(folder, launches), folder) for folder in runs.glob("*/")), reverse=True)
    return next(
        (folder for written, folder in by_age if written and _is_unfinished(folder, suite, launches)), None
    )


def _launches(folder: Path, launches: int) -> list[Path]:
    return [folder] if launches == 1 else [folder / f"launch-{number}" for number in range(1, launches + 1)]


def _written(folder: Path, launches: int) -> float:
    """Return the time of a run's last log entry; 0 for a folder that is not a run."""
    logs = [run / "log.txt" for run in _launches(folder, launches)]
    return max((log.stat().st_mtime for log in logs if log.is_file()), default=0.0)


def _is_unfinished(folder: Path, suite: str, launches: int) -> bool:
    found = [_suite_and_state(run) for run in _launches(folder, launches)]
    return any(name == suite for name, _ in found) and not all(complete for _, complete in found)


def _suite_and_state(run: Path) -> tuple[str | None, bool]:
    """Return the name of a run's suite (None without a finished case), and True if all cases are finished."""
    whole = run / "run.h5"
    for file in _files(whole):
        with suppress(TraceError), open_trace(file) as source:  # damaged or foreign: try the next file
            for case in validation.check_file(source)[:1]:
                _, fields = validation.check_case(source, case, tables=())
                return str(fields.get("suite")), file == whole and bool(source.attrs["complete"])
    return None, False


def _files(whole: Path) -> Iterator[Path]:
    if whole.is_file():
        yield whole
    yield from sorted((whole.parent / "parts").glob("*.h5"))
