"""Memory that ranks of one host share: files of MPI libraries in /dev/shm, which stay if the ranks are killed.

``python -m hpcdl.launch.segments STATUS BEGIN`` removes those of a run whose own process was killed. Linux only.
"""

import fcntl
import os
import re
import shutil
import signal
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep, time
from typing import Final

from hpcdl.launch import machine
from hpcdl.launch.process import STATUS, if_killed

FOLDER: Final = Path("/dev/shm")  # noqa: S108 - the libraries choose it
NAMES: Final = re.compile(r"(mpich_sh(m|ar)_|ucx_shm_posix_|sm_segment\.|open_mpi\.).*")
"""Of MPICH, UCX and Open MPI."""
END_TIMEOUT: Final = 5.0
"""Seconds in which killed processes end; a rank whose launcher was killed notices it within two."""


@contextmanager
def removed_at_end(status: Path) -> Iterator[None]:
    """Context manager: ranks that the body starts, with the file ``status``, leave no segments on this host.

    If this process is killed, another removes them, and the file's folder.
    """
    begin = time()
    with if_killed(sys.executable, "-P", "-m", "hpcdl.launch.segments", str(status), str(begin)):
        try:
            yield
        finally:
            remove(status, begin)


def remove(status: Path, begin: float) -> None:
    """Wait for the end of the processes with the file ``status``, and remove the segments made since ``begin``.

    Segments that a process has open stay, so that no other job loses one: of the processes' own, all are closed.
    """
    limit = monotonic() + END_TIMEOUT
    while _has_processes(status) and monotonic() < limit:
        sleep(0.1)
    if unused := _unused(begin):
        sleep(1)  # a library closes a segment before it removes it
        for segment in unused & _unused(begin):
            segment.unlink(missing_ok=True)


def _has_processes(status: Path) -> bool:
    environments = map(machine.text, Path("/proc").glob("[0-9]*/environ"))  # empty if ended, or another user's
    return any(f"{STATUS}={status}" in environment.split("\0") for environment in environments)


def _unused(begin: float) -> set[Path]:
    """Return the segments of this user that were made since ``begin`` and are open in no process."""
    unused = set()
    for path in FOLDER.iterdir() if FOLDER.exists() else ():
        with suppress(OSError):  # it is gone
            made = path.lstat()
            is_new = made.st_mtime >= begin and made.st_uid == os.geteuid() and stat.S_ISREG(made.st_mode)
            if is_new and NAMES.fullmatch(path.name) and not _is_open(path):
                unused.add(path)
    return unused


def _is_open(path: Path) -> bool:
    """Return True if any process has the file open or mapped: then the kernel grants no lease (fcntl(2))."""
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)  # it is ignored; SIGIO would end this process
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


if __name__ == "__main__":
    remove(Path(sys.argv[1]), float(sys.argv[2]))
    shutil.rmtree(Path(sys.argv[1]).parent, ignore_errors=True)
