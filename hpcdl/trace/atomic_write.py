"""Atomic replacement of a file: after a crash it is either the complete old or the complete new one."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hpcdl.trace.run_files import make_new

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


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
