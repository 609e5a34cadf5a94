"""Open a trace for reading after its checks; errors become TraceError."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import h5py

from hpcdl.trace import validation
from hpcdl.trace.checksum import checksum_matches, has_checksum
from hpcdl.trace.input_file import check_regular
from hpcdl.trace.layout import SCHEMA
from hpcdl.trace.record import TraceError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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
        found = [validation.scalar(file.attrs.get(name, ""), name) for name in ("format", "schema")]
    except DAMAGE as error:
        found = [_line(error), ""]
    if found[0] != "hpcdl":
        raise TraceError(f"{path}: an HDF5 file, but not a trace of hpcdl")
    if found[1] != SCHEMA:
        raise TraceError(f"{path}: schema {found[1]!r}, but this hpcdl reads schema {SCHEMA}")


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
