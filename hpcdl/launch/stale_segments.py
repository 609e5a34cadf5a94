"""Remove shared-memory segments of killed MPI jobs of this user: /dev/shm/mpich_shm_* and sm_segment.*.

MPICH and Open MPI create such segments for each job, and delete them only at a normal end.
"""

from __future__ import annotations

import fcntl
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Final

_SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - MPI libraries choose it
_SEGMENTS: Final = ("mpich_shm_*", "sm_segment.*")
"""File name patterns of MPICH and Open MPI."""


def remove_stale_segments(folder: Path = _SHARED_MEMORY) -> int:
    """Remove this user's segments that no process has open or mapped; return their number. Linux only."""
    removed = 0
    for pattern in _SEGMENTS:
        for segment in folder.glob(pattern):
            with suppress(OSError):  # another user's, in use, or already removed
                removed += _remove_unused(segment)
    return removed


def _remove_unused(segment: Path) -> bool:
    """Remove a segment; OSError if a process has it open or mapped, False if it belongs to another user."""
    file = os.open(segment, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if os.fstat(file).st_uid != os.getuid():
            return False
        # the kernel grants a write lease on a file only if nothing else has it open, in any container (fcntl(2))
        fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)  # the default signal, sent if the file is opened, kills
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        segment.unlink()
    finally:
        os.close(file)
    return True
