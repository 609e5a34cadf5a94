"""Start ``mpirun`` ourselves, so that ``hpcdl run`` needs no launcher on a workstation."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hpcdl.launch.testbed_settings import emulated

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

STATUS: Final = "HPCDL_STATUS_FILE"
"""Where rank 0 leaves the exit code: launchers decorate any other than 0 with a page of their own."""


TERMINAL: Final = "HPCDL_TERMINAL"
"""Set when who launched us writes to a terminal: the ranks themselves see a pipe."""


COMMAND: Final = "HPCDL_COMMAND"
"""What was typed, where who launched us has added to it."""


AGAIN: Final = 76
"""Left in the place of an exit code: a rank has died as a case wanted, and what is left to do needs all ranks."""

INTERRUPTED: Final = 75

_TOLERANT: Final = "OMPI_MCA_mpi_ft_enable"
"""Set by Open MPI's mpirun when it is to go on without ranks that die."""


class NoLauncher(Exception):  # noqa: N818 - says what is the matter
    """There is no mpirun."""


def mpirun() -> Path:
    """The launcher that belongs to this Python's MPI: in its own bin folder, or else on the PATH.

    Raises NoLauncher.
    """
    own = Path(sysconfig.get_path("scripts"))
    for name in ("mpirun", "mpiexec"):
        found = shutil.which(name, path=str(own)) or shutil.which(name)
        if found:
            return Path(found)
    raise NoLauncher("there is no mpirun: pip install 'hpcdl[mpich]', or load your site's MPI module")


def intolerance(environment: Mapping[str, str], library: str) -> str | None:
    """One line about a job that ends when one of its ranks dies; None where the others go on."""
    if library != "Open MPI":
        return f"{library} ends the job when a rank dies; Open MPI 5 started by mpirun --with-ft ulfm does not"
    if environment.get(_TOLERANT) != "1":
        return "this job ends when a rank dies: start it by mpirun --with-ft ulfm, or let hpcdl run start it"
    return None


def python_command(ranks: int, arguments: Sequence[str], *, tolerant: bool = False) -> list[str]:
    """``mpirun -n ranks python ...`` with the flags that the library needs.

    ``tolerant``: the others are to go on when a rank dies, where the library can. Raises NoLauncher.
    """
    launcher = mpirun()
    version = subprocess.run([launcher, "--version"], capture_output=True, text=True, check=False).stdout
    flags = []
    # Open MPI otherwise refuses more ranks than cores, and binds those it takes; a testbed's settings are in the
    # environment, and flags would overrule them
    if "Open MPI" in version and emulated() is None:
        flags = ["--map-by", ":OVERSUBSCRIBE"]
        if ranks > len(os.sched_getaffinity(0)):
            flags += ["--bind-to", "none"]
    if "Open MPI" in version and tolerant:
        flags += ["--with-ft", "ulfm"]
    return [str(launcher), *flags, "-n", str(ranks), sys.executable, *arguments]


def launch_environment() -> dict[str, str]:
    """Our environment, and Open MPI's leave to be root, which is who one is in a container."""
    return {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def self_launch(
    ranks: int, arguments: Sequence[str], status: Path, *, tolerant: bool = False, typed: Sequence[str] = ()
) -> int | None:
    """Run hpcdl on ``ranks`` ranks; the exit code is what rank 0 leaves in ``status``, None if it left none.

    ``arguments`` are what was ``typed`` and more.

    SIGUSR1 is passed on to the launcher, which passes it on to the ranks. Ctrl-C, of which a terminal tells the
    launcher too, and SIGTERM end it, and then raise KeyboardInterrupt. Raises NoLauncher.
    """
    told = {STATUS: str(status), TERMINAL: "1" if sys.stdout.isatty() else "", COMMAND: shlex.join(typed)}
    command = python_command(ranks, ["-m", "hpcdl", *arguments], tolerant=tolerant)
    with subprocess.Popen(command, env=launch_environment() | told) as launcher:

        def terminate(_number: int, _frame: object) -> None:
            launcher.terminate()
            raise KeyboardInterrupt

        signal.signal(signal.SIGUSR1, lambda number, _frame: launcher.send_signal(number))
        signal.signal(signal.SIGTERM, terminate)
        try:
            launcher.wait()
        except KeyboardInterrupt:
            _end(launcher)
            if not status.exists():
                raise
    return int(status.read_text()) if status.exists() else None


def _end(launcher: subprocess.Popen[bytes]) -> None:
    """Wait for a launcher that should know that it is to end; tell it if it seems not to."""
    for patience in (2, 30):
        with suppress(subprocess.TimeoutExpired):
            launcher.wait(patience)
            return
        launcher.terminate()
    launcher.kill()


def typed_command() -> list[str]:
    """The program and its arguments, as they were typed."""
    typed = shlex.split(os.environ.get(COMMAND, ""))
    return ["hpcdl", *typed] if typed else sys.argv


def on_terminal() -> bool:
    """Whether what rank 0 prints goes to a terminal, as far as who launched us knows.

    A rank's own stdout says nothing: it is a pipe under MPICH, and a pseudo-terminal under Open MPI.
    """
    return os.environ.get(TERMINAL) == "1"


def leave_status(code: int, rank: int) -> int:
    """The code that this rank is to exit with, once rank 0 has left the true one for who launched us."""
    place = os.environ.get(STATUS)
    if place is None:
        return INTERRUPTED if code == AGAIN else code
    if rank == 0:
        Path(place).write_text(str(code))
    return 0
