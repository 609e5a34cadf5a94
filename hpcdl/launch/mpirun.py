"""Command lines of ``mpirun``, variables for the ranks that it starts, the rank that ends first, and its segments.

Segments are memory that ranks of one host share: files of MPI libraries in /dev/shm, which stay if the ranks are
killed. ``python -m hpcdl.launch.mpirun STATUS BEGIN`` removes those of a run whose own process was killed.
"""

import fcntl
import os
import re
import select
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from socket import gethostname
from time import monotonic, sleep, time
from typing import Final, Self

from hpcdl.launch import machine
from hpcdl.launch.process import HEARTBEAT, STATUS, LaunchError, if_killed, status_folder
from hpcdl.launch.testbed import emulated

TERMINAL: Final = "HPCDL_TERMINAL"
"""Set if the launching process writes to a terminal; the ranks write to a pipe."""
LAUNCH: Final = "HPCDL_LAUNCH"
"""Number of this launch, such as ``2 of 3``; the launching process reports all launches together."""
COMMAND: Final = "HPCDL_COMMAND"
"""Command as typed, if the launching process added to it."""


class NoLauncher(LaunchError):  # noqa: N818 - a state, not an error
    """No mpirun was found."""


def mpirun() -> Path:
    """Return the launcher of this Python's MPI, from its own bin folder or from PATH. Raises NoLauncher."""
    scripts = Path(sysconfig.get_path("scripts"))
    for name in ("mpirun", "mpiexec"):
        launcher = shutil.which(name, path=str(scripts)) or shutil.which(name)
        if launcher:
            return Path(launcher)
    raise NoLauncher("no mpirun found: pip install 'hpcdl[mpich]', or load your site's MPI module")


def fault_tolerance_obstacle(environment: Mapping[str, str], library: str) -> str | None:
    """Return in one line why the failure of a process ends the job; None if the job continues."""
    if library != "Open MPI":
        return f"{library} ends the job when a rank fails; Open MPI 5 started by mpirun --with-ft ulfm does not"
    if environment.get("OMPI_MCA_mpi_ft_enable") != "1":  # which Open MPI's mpirun sets if the job continues
        return "this job ends when a rank fails: start it by mpirun --with-ft ulfm, or let hpcdl run start it"
    return None


def python_command(ranks: int, arguments: Sequence[str], *, fault_tolerant: bool = False) -> list[str]:
    """Return ``mpirun -n ranks python ...`` with the options that the library needs.

    ``fault_tolerant``: the job continues after a process failed, if the library supports it. Raises NoLauncher.
    """
    launcher = mpirun()
    version = subprocess.run([launcher, "--version"], capture_output=True, text=True, check=False).stdout
    flags = []
    # without these, Open MPI refuses more ranks than cores, and binds ranks; on a testbed the environment has the
    # settings, and options would override them
    if "Open MPI" in version and emulated() is None:
        flags = ["--map-by", ":OVERSUBSCRIBE"]
        if ranks > len(os.sched_getaffinity(0)):
            flags += ["--bind-to", "none"]
    if "Open MPI" in version and fault_tolerant:
        flags += ["--with-ft", "ulfm"]
    # -P: modules of the standard library must not be shadowed by files of the current folder
    return [str(launcher), *flags, "-n", str(ranks), sys.executable, "-P", *arguments]


def launch_environment() -> dict[str, str]:
    """Return this environment, with Open MPI's permission to run as root, as in containers.

    Within a step of Slurm, such as a shell, mpirun's own step shares the cores: it would wait for them for ever.
    """
    overlap = {"SLURM_OVERLAP": "1"} if "SLURM_STEP_ID" in os.environ else {}
    return {**os.environ, **overlap, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def typed_command() -> list[str]:
    """Return the program and its arguments as typed."""
    typed = shlex.split(os.environ.get(COMMAND, ""))
    return ["hpcdl", *typed] if typed else sys.argv


CLEAR: Final = "\r\x1b[K"
"""Clear the line: carriage return, erase to the end of the line (ECMA-48)."""


def on_terminal() -> bool:
    """Return True if rank 0's output reaches a terminal, according to the launching process.

    A rank's own stdout does not tell: it is a pipe under MPICH, and a pseudo-terminal under Open MPI.
    """
    return os.environ.get(TERMINAL) == "1"


PREFIX: Final = "rank-"
"""Beginning of the name of a rank's pipe, before its number, ``@`` and host."""
_open: Final[list[int]] = []
"""Pipe of this process, open until it ends."""


def announce(rank: int) -> None:
    """Open a pipe in the folder of the ``hpcdl run`` that started this rank, if it is on this host.

    Wait, at most 2 s, until that has taken the pipe: a rank may end soon after. On an emulated host, whose name is
    another, only the heartbeat tells that the rank has started.
    """
    folder = status_folder()
    if folder is not None and folder.is_dir():
        pipe, limit = folder / f"{PREFIX}{rank}@{gethostname()}", monotonic() + 2
        with suppress(OSError):  # it only makes a message clearer
            (folder / HEARTBEAT).touch()
            hidden = pipe.with_name(f".{pipe.name}")
            os.mkfifo(hidden)
            _open.append(os.open(hidden, os.O_RDWR | os.O_NONBLOCK))  # a reader is not needed to open both ends
            hidden.rename(pipe)
            while pipe.exists() and monotonic() < limit:
                sleep(0.01)


class RankProcesses:
    """Processes of ``ranks`` ranks that have announced themselves in ``folder``, and the one that ended first.

    A rank that is killed cannot record its failure, and within milliseconds the launcher ends the other ranks.
    Each rank keeps a named pipe open. The kernel closes it along with the sockets by which the launcher notices
    the end, so before the other ranks are killed; the end of the process comes later, often after theirs. An
    epoll instance gives the pipes in the order in which they were closed.
    """

    def __init__(self, folder: Path, ranks: int) -> None:
        self._folder, self._number = folder, ranks
        self._ended = select.epoll()
        self._ranks: dict[int, int] = {}
        """Rank by descriptor of its pipe."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.close()
        for descriptor in self._ranks:
            os.close(descriptor)
        for path in self._folder.glob(f"{PREFIX}*"):
            path.unlink(missing_ok=True)

    def watch(self) -> int:
        """Watch the processes that were announced since the last call; return the number of all."""
        for path in self._folder.glob(f"{PREFIX}*@{gethostname()}"):
            with suppress(OSError):  # it is gone
                descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
                path.unlink()
                # the read would block while the rank has its end open, into which it writes nothing
                with suppress(BlockingIOError):
                    os.read(descriptor, 1)
                    os.close(descriptor)
                    continue
                self._ranks[descriptor] = int(path.name.removeprefix(PREFIX).partition("@")[0])
                self._ended.register(descriptor, select.EPOLLHUP)
        return len(self._ranks)

    def forget(self) -> None:
        """Name no rank: the launcher is about to be killed, and its ranks with it."""
        self._number = len(self._ranks) + 1

    def first_ended(self) -> int | None:
        """Return the rank whose process ended first; None if unknown, as if not all ranks were watched."""
        if len(self._ranks) < self._number:
            return None
        events = self._ended.poll(0)
        return self._ranks[events[0][0]] if events else None


SEGMENTS: Final = Path("/dev/shm")  # noqa: S108 - the libraries choose it
SEGMENT_NAMES: Final = re.compile(r"(mpich_sh(m|ar)_|ucx_shm_posix_|sm_segment\.|open_mpi\.).*")
"""Of MPICH, UCX and Open MPI."""
REMOVAL_TIMEOUT: Final = 20.0
"""Seconds in which killed processes end; a rank whose launcher was killed may notice it only after several."""


@contextmanager
def segments_removed_at_end(status: Path) -> Iterator[None]:
    """Context manager: ranks that the body starts, with the file ``status``, leave no segments on this host.

    If this process is killed, another removes them, and the file's folder.
    """
    begin = time()
    with if_killed(sys.executable, "-P", "-m", "hpcdl.launch.mpirun", str(status), str(begin)):
        try:
            yield
        finally:
            remove_segments(status, begin)


def remove_segments(status: Path, begin: float) -> None:
    """Wait for the end of the processes with the file ``status``, and remove the segments made since ``begin``.

    Segments that a process has open stay, so that no other job loses one: of the processes' own, all are closed.
    """
    limit = monotonic() + REMOVAL_TIMEOUT
    while _has_processes(status) and monotonic() < limit:
        sleep(0.1)
    before: set[Path] = set()
    for _ in range(4):
        new = _new_segments(begin)
        unused = {path for path, is_open in new.items() if not is_open}
        for segment in unused & before:
            segment.unlink(missing_ok=True)
        # the kernel closes the segments of a killed process after it has taken away the process's variables
        if unused <= before and (status.exists() or unused == new.keys()):
            break
        sleep(1)  # a library closes a segment before it removes it
        before = unused


def _has_processes(status: Path) -> bool:
    environments = map(machine.text, Path("/proc").glob("[0-9]*/environ"))  # empty if ended, or another user's
    return any(f"{STATUS}={status}" in environment.split("\0") for environment in environments)


def _new_segments(begin: float) -> dict[Path, bool]:
    """Return the segments of this user that were made since ``begin``: True if one is open in any process."""
    new = {}
    for path in SEGMENTS.iterdir() if SEGMENTS.exists() else ():
        with suppress(OSError):  # it is gone
            made = path.lstat()
            is_new = made.st_mtime >= begin and made.st_uid == os.geteuid() and stat.S_ISREG(made.st_mode)
            if is_new and SEGMENT_NAMES.fullmatch(path.name):
                new[path] = _is_open(path)
    return new


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
    remove_segments(Path(sys.argv[1]), float(sys.argv[2]))
    shutil.rmtree(Path(sys.argv[1]).parent, ignore_errors=True)
