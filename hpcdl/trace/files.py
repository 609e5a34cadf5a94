"""Files of a run folder: checksums, atomic replacement, and opening without following symbolic links."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TextIO

from hpcdl.trace.input_file import check_regular

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


SIZE: Final = 512
"""Bytes of the user block."""
MARK: Final = b"hpcdl trace sha256 "
_PIECE: Final = 1 << 20


def write_checksum(path: Path) -> None:
    """Write the checksum of a closed file to its user block. Raises OSError."""
    line = MARK + _digest(path) + b"\n"
    with path.open("r+b") as file:
        file.write(line)


def has_checksum(path: Path) -> bool:
    """Return True if the file has a trace's user block. Raises OSError."""
    with path.open("rb") as file:
        return file.read(len(MARK)) == MARK


def checksum_matches(path: Path) -> bool:
    """Return True if the file's contents match its checksum. Raises OSError."""
    return verified_checksum(path) is not None


def verified_checksum(path: Path) -> str | None:
    """Return the checksum of a trace whose contents match it; None for any other file. Raises OSError."""
    check_regular(path)
    with path.open("rb") as file:
        head = file.read(SIZE)
    digest = _digest(path) if head.startswith(MARK) else b""
    return digest.decode() if digest and head[len(MARK) :].split(b"\n")[0] == digest else None


def _digest(path: Path) -> bytes:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        file.seek(SIZE)
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest().encode()


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; on exit fsync it, rename it to ``path`` and fsync the directory.

    The temporary name ends in ``.partial``, so patterns for finished files do not match it. An existing temporary
    file or link is replaced. If the body raises, ``path`` is unchanged. Raises OSError.
    """
    temporary = path.with_name(f".{path.name}.partial")
    make_new(temporary)
    try:
        yield temporary
        _sync(temporary)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
            status = path.lstat()
        except FileNotFoundError:
            continue
        name = path.relative_to(folder)
        if stat.S_ISLNK(status.st_mode):
            return f"{name} is a symbolic link; links are not followed"
        if status.st_uid != mine:
            return f"{name} belongs to another user ({status.st_uid})"
        if not (stat.S_ISDIR if name.name == "parts" else stat.S_ISREG)(status.st_mode):
            return f"{name} exists but is not a {'folder' if name.name == 'parts' else 'regular file'}"
    return None
