"""Checksum of a trace, which detects damage before the HDF5 library reads the file.

The library can loop for ever on a damaged file. The checksum is in the user block, 512 bytes that HDF5 skips.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from hpcdl.trace.input_file import check_regular

if TYPE_CHECKING:
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
    found = hashlib.sha256()
    with path.open("rb") as file:
        file.seek(SIZE)
        while piece := file.read(_PIECE):
            found.update(piece)
    return found.hexdigest().encode()
