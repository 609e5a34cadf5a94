"""Files that a dataset comes in: which folder they are in, and what is in them."""

from __future__ import annotations

import gzip
import os
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from hpcdl.data.dataset import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence


def find_files(
    name: str,
    path: str,
    files: Sequence[str],
    *,
    subfolders: Sequence[str],
    installed: Sequence[Path] = (),
    hint: str,
) -> tuple[Path, dict[str, Path]]:
    """The folder of the dataset ``name``, and where in it each of ``files`` is.

    It is the first that holds any of them: ``path`` alone if it is not empty; else those of ``subfolders`` in
    $HPCDL_DATA, $HPCDL_DATA itself, and those of ``installed``. Each file may be plain or end in .gz; where
    both are there the plain one is taken.

    Raises DataError, which tells the folders looked in and the ``hint`` on how to get the files, if there is
    no such folder; DataError if that folder lacks one of the files.
    """
    if not isinstance(path, str):
        raise DataError(f"{name}: path must be the name of a folder, not {path!r}")
    folders = [Path(path)] if path else [*_data_folders(subfolders), *installed]
    for folder in folders:
        found = _present(folder, files)
        if not found:
            continue
        for file in files:
            if file not in found:
                raise DataError(
                    f"{folder / file}: missing, also with .gz, although other files of {name} are there"
                )
        return folder, found
    looked = ", ".join(map(str, folders)) or "HPCDL_DATA, which is not set"
    raise DataError(f"{name}: not found in {looked}; {hint}")


def content(path: Path) -> bytes:
    """All bytes of a file, which is gzipped if its name ends in .gz.

    Raises DataError, naming the file, if it is missing, unreadable, not gzip or truncated gzip.
    """
    try:
        if path.suffix != ".gz":
            return path.read_bytes()
        with gzip.open(path) as stream:
            return stream.read()
    except FileNotFoundError as error:
        raise DataError(f"{path}: missing") from error
    except EOFError as error:
        raise DataError(f"{path}: truncated: the gzip stream ends too early") from error
    except gzip.BadGzipFile as error:
        raise DataError(f"{path}: not gzip, or damaged: {error}") from error
    except zlib.error as error:
        raise DataError(f"{path}: damaged gzip stream: {error}") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def _data_folders(subfolders: Sequence[str]) -> list[Path]:
    root = os.environ.get("HPCDL_DATA", "")
    return [*(Path(root) / name for name in subfolders), Path(root)] if root else []


def _present(folder: Path, files: Sequence[str]) -> dict[str, Path]:
    candidates = {file: (folder / file, folder / f"{file}.gz") for file in files}
    try:
        return {file: path for file, two in candidates.items() for path in reversed(two) if path.exists()}
    except OSError as error:
        raise DataError(f"{folder}: cannot be read: {error.strerror}") from error
