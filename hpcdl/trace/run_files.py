"""Files of a run folder, opened for writing without following symbolic links."""

from __future__ import annotations

import os
import stat
import tempfile
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from pathlib import Path

FILES = ("run.h5", ".run.h5.partial", "report.md", "report.html", "log.txt", "parts")


def append(path: Path) -> TextIO:
    """Open a text file to append to; OSError also for a symbolic link."""
    return os.fdopen(_open_descriptor(path, os.O_APPEND), "a", encoding="utf-8")


def write_text(path: Path, text: str) -> None:
    """Write a text file; OSError also for a symbolic link."""
    with os.fdopen(_open_descriptor(path, os.O_TRUNC), "w", encoding="utf-8") as file:
        file.write(text)


def make_new(path: Path) -> None:
    """Create an empty file that replaces an existing file or link. Raises OSError."""
    path.unlink(missing_ok=True)
    os.close(_open_descriptor(path, os.O_EXCL))


def _open_descriptor(path: Path, flags: int) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | flags, 0o666)


def write_obstacle(folder: Path) -> str | None:
    """Return in one line why writing to the run folder is unsafe; None if it is safe.

    A symbolic link, or another user, could redirect the writing to any file. Raises OSError if the folder is not
    writable.
    """
    with tempfile.TemporaryFile(dir=folder) as file:
        mine = os.fstat(file.fileno()).st_uid  # not geteuid: a file system may map root to another user
    if (owner := folder.stat().st_uid) != mine:
        return f"belongs to another user ({owner})"
    for path in (*(folder / name for name in FILES), *sorted((folder / "parts").glob("*"))):
        try:
            found = path.lstat()
        except FileNotFoundError:
            continue
        name = path.relative_to(folder)
        if stat.S_ISLNK(found.st_mode):
            return f"{name} is a symbolic link; links are not followed"
        if found.st_uid != mine:
            return f"{name} belongs to another user ({found.st_uid})"
        if not (stat.S_ISDIR if name.name == "parts" else stat.S_ISREG)(found.st_mode):
            return f"{name} exists but is not a {'folder' if name.name == 'parts' else 'regular file'}"
    return None
