"""Open input files: only regular files of a limited size.

A FIFO would block for ever; /dev/zero or a damaged archive would fill the memory.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import tomllib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pathlib import Path

MAX_TEXT: Final = 4 << 20
"""Largest size of a suite or network file (bytes)."""
MAX_DATA: Final = 1 << 30
"""Largest size of a data file that is read as a whole, unpacked (bytes)."""
MAX_PARTS: Final = 100
"""Largest number of parts of a dotted key of TOML."""
_LONG_KEY: Final = re.compile(rf"""(?<![\w"'.-])(?:[\w"'-]++[ \t]*+\.[ \t]*+){{{MAX_PARTS}}}""")


def check_regular(path: Path) -> None:
    """Raise OSError, with the reason as ``strerror``, unless ``path`` is a regular file or a folder.

    A folder passes, because opening it fails with the system's own message.
    """
    try:
        mode = path.stat().st_mode
    except ValueError as error:  # a null character
        raise FileNotFoundError(errno.ENOENT, str(error), str(path)) from None
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))


def read_bytes(path: Path, limit: int) -> bytes:
    """Return the contents of a regular file; OSError if it cannot be read or exceeds ``limit`` bytes."""
    check_regular(path)
    # O_NONBLOCK: the path may have become a FIFO since it was checked
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:  # noqa: PTH123
        content = stream.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"larger than {limit} bytes", str(path))
    return content


def read_text(path: Path) -> str:
    """Return the UTF-8 text of a suite or network file; raise OSError or UnicodeDecodeError."""
    return read_bytes(path, MAX_TEXT).decode("utf-8")


def parse_toml(text: str) -> dict[str, Any]:
    """Return the tables of a TOML text. Raises ValueError, also for tables nested too deeply.

    Keys of more than MAX_PARTS parts are refused: the parser's time grows with the square of their number.
    """
    if _LONG_KEY.search(text):
        raise ValueError(f"a key of more than {MAX_PARTS} parts")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("tables or lists nested too deeply") from None
