"""A file that is either the old one or the whole new one, whenever the machine stops."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Lend a name beside ``path`` to write to; on leaving, fsync, rename onto ``path``, fsync the directory.

    The lent name ends in ``.partial``, so that no pattern for finished files finds it; what a killed
    predecessor left there is overwritten. When the block raises, ``path`` is untouched. Raises OSError.
    """
    beside = path.with_name(f".{path.name}.partial")
    try:
        yield beside
        _sync(beside)
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
