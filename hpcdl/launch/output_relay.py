"""Relay of a launcher's output, so that the end of its reader does not end the job.

A reader such as ``head`` ends early. MPICH's launcher ends the job when its standard output is a broken pipe; Open
MPI's does not.
"""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager, suppress
from threading import Thread
from typing import TYPE_CHECKING, BinaryIO, Final

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

STDOUT: Final = 1
_PIECE: Final = 1 << 16
"""Bytes that are read at a time, at most."""
_LAST_WORDS: Final = 5.0
"""Seconds for the rest of the output when the launcher has ended; other processes may hold the pipe longer."""


def needed() -> bool:
    """Return True if this process's standard output is a pipe, whose reader may end."""
    return stat.S_ISFIFO(os.fstat(STDOUT).st_mode)


@contextmanager
def relayed(program: subprocess.Popen[bytes]) -> Iterator[None]:
    """Context manager: copy the program's output, if it is a pipe, to standard output until the pipe ends."""
    if program.stdout is None:
        yield
        return
    copying = Thread(target=_copy, args=(program.stdout,), name="hpcdl-output", daemon=True)
    copying.start()
    try:
        yield
    finally:
        copying.join(_LAST_WORDS)


def _copy(source: BinaryIO) -> None:
    """Copy to standard output; discard the rest when its reader has ended."""
    broken = False
    with suppress(ValueError):  # closed: the launcher has ended, and another process still holds the pipe
        while piece := os.read(source.fileno(), _PIECE):
            while piece and not broken:
                try:
                    piece = piece[os.write(STDOUT, piece) :]
                except OSError:  # a broken pipe
                    broken = True
