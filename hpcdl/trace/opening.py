"""Open a trace for reading after its checks; errors become TraceError."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

import h5py

from hpcdl.trace import validation
from hpcdl.trace.files import checksum_matches, has_checksum
from hpcdl.trace.input_file import check_regular
from hpcdl.trace.layout import SCHEMA
from hpcdl.trace.recorder import TraceError

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
    states = [_suite_and_state(run) for run in _launches(folder, launches)]
    return any(name == suite for name, _ in states) and not all(complete for _, complete in states)


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


DAMAGE: Final = (OSError, KeyError, ValueError, TypeError, RuntimeError, MemoryError)
"""Exceptions of HDF5 and :mod:`hpcdl.trace.validation` for a file that is damaged or not a trace."""


@contextmanager
def open_trace(path: Path, *, verified: bool = False) -> Iterator[h5py.File]:
    """Open a trace for reading; errors in the body that indicate damage become TraceErrors naming the file.

    ``verified``: the checksum was checked at an earlier opening and is not computed again.
    """
    try:
        check_regular(path)
        summed = has_checksum(path)
        if summed and not verified and not checksum_matches(path):
            raise TraceError(f"{path}: damaged or truncated file: its checksum does not fit")
        if not summed and h5py.is_hdf5(path):
            raise TraceError(f"{path}: an HDF5 file, but not a trace of hpcdl")
        file = h5py.File(path, "r", locking=False)
    except OSError as error:
        raise TraceError(f"{path}: {_reason(path, error)}") from None
    with file:
        _check_schema(file, path)
        try:
            yield file
        except DAMAGE as error:
            raise TraceError(f"{path}: damaged trace: {_line(error)}") from error


def _check_schema(file: h5py.File, path: Path) -> None:
    try:
        values = [validation.scalar(file.attrs.get(name, ""), name) for name in ("format", "schema")]
    except DAMAGE as error:
        values = [_line(error), ""]
    if values[0] != "hpcdl":
        raise TraceError(f"{path}: an HDF5 file, but not a trace of hpcdl")
    if values[1] != SCHEMA:
        raise TraceError(f"{path}: schema {values[1]!r}, but this hpcdl reads schema {SCHEMA}")


def _reason(path: Path, error: OSError) -> str:
    if not path.exists():
        return "no such file"
    if "truncated" in str(error):
        return "truncated file"
    if isinstance(error, PermissionError):
        return "permission denied"
    if not path.is_file() and not path.is_dir():
        return "not a regular file"
    return "not an HDF5 file" if not h5py.is_hdf5(path) else f"cannot be opened ({_line(error)})"


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
