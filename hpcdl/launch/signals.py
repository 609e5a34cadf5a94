"""Handling of signals, of the end of the parent process, and files by which ranks tell ``hpcdl run`` how they end.

SIGUSR1 requests an orderly end after the running case. SIGINT, SIGTERM and SIGHUP end a rank, and thereby the job.
"""

from __future__ import annotations

import atexit
import os
import signal
from pathlib import Path
from threading import Event, Thread
from time import sleep
from typing import TYPE_CHECKING, Final

from hpcdl.exit_codes import INTERRUPTED

if TYPE_CHECKING:
    from collections.abc import Callable

_PERIOD: Final = 2.0
"""Seconds between two checks of the parent's process id."""

_PR_SET_PDEATHSIG: Final = 1
"""Constant of prctl(2)."""

_stop = Event()

STATUS: Final = "HPCDL_STATUS_FILE"
"""File for rank 0's exit code; launchers print a page of text for any code except 0."""

RELAUNCH: Final = 76
"""Status in place of an exit code: a process failed as a case required, and the remaining cases need all ranks."""

STOP: Final = "stop"
"""File beside rank 0's exit code that asks the ranks to stop after the running case."""


def status_folder() -> Path | None:
    """Return the folder of the ``hpcdl run`` that started the ranks, on its host; None under another launcher."""
    place = os.environ.get(STATUS)
    return None if place is None else Path(place).parent


def heartbeat_file() -> Path | None:
    """Return the file that rank 0 touches regularly; None if another launcher started the ranks."""
    folder = status_folder()
    return None if folder is None else folder / "alive"


def write_status(code: int, rank: int) -> int:
    """Write rank 0's exit code to the status file; return the code that this process exits with."""
    place = os.environ.get(STATUS)
    if place is None:
        return INTERRUPTED if code == RELAUNCH else code
    if rank == 0:
        Path(place).write_text(str(code))
    return 0


def prepare(*, is_rank: bool) -> None:
    """Install the signal handlers of this process; a rank also watches its parent, the launcher.

    Call it before slow imports, because SIGUSR1 kills a process without a handler.
    """
    signal.signal(signal.SIGUSR1, request_stop)
    atexit.register(signal.signal, signal.SIGUSR1, signal.SIG_IGN)  # Python removes its handlers before it ends
    if not is_rank:
        return
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # after KeyboardInterrupt this rank would wait in MPI_Finalize for the other ranks
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    Thread(target=_end_with, args=(os.getppid(),), name="hpcdl-parent", daemon=True).start()


def request_stop(_number: int = signal.SIGUSR1, _frame: object = None) -> None:
    """Request the end of the run after the running case; a signal handler."""
    _stop.set()


def stop_requested() -> bool:
    """Return True if this process, or the ``hpcdl run`` that started the ranks, has received SIGUSR1."""
    folder = status_folder()
    return _stop.is_set() or (folder is not None and (folder / STOP).exists())


def _end_with(parent: int) -> None:
    """End this process when ``parent`` has ended; a killed launcher cannot end its ranks."""
    while os.getppid() == parent:
        sleep(_PERIOD)
    os._exit(INTERRUPTED)


def child_preparation(number: int = signal.SIGTERM) -> Callable[[], None]:
    """Return the function that a launcher's process calls between fork and exec.

    It makes the launcher receive the signal ``number`` when this process ends in any way. It also makes the
    launcher ignore SIGUSR1, as batch systems send it to all processes, until it installs its own handler. Linux
    only.
    """
    import ctypes

    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def prepare_child() -> None:
        prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:  # the parent ended before prctl
            os._exit(INTERRUPTED)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)

    return prepare_child
