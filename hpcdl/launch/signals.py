"""Handling of signals and of the end of the parent process.

SIGUSR1 requests an orderly end after the running case. SIGINT, SIGTERM and SIGHUP end a rank, and thereby the job.
"""

from __future__ import annotations

import atexit
import os
import signal
from threading import Event, Thread
from time import sleep
from typing import TYPE_CHECKING, Final

from hpcdl.exit_codes import INTERRUPTED
from hpcdl.launch.library import launched

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_PERIOD: Final = 2.0
"""Seconds between two checks of the parent's process id."""

_PR_SET_PDEATHSIG: Final = 1
"""Constant of prctl(2)."""

_stop = Event()


def prepare(environment: Mapping[str, str]) -> None:
    """Install the signal handlers of this process; a rank also watches its parent, the launcher.

    Call it before slow imports, because SIGUSR1 kills a process without a handler.
    """
    signal.signal(signal.SIGUSR1, request_stop)
    atexit.register(signal.signal, signal.SIGUSR1, signal.SIG_IGN)  # Python removes its handlers before it ends
    if not launched(environment):
        return
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # after KeyboardInterrupt this rank would wait in MPI_Finalize for the other ranks
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    Thread(target=_end_with, args=(os.getppid(),), name="hpcdl-parent", daemon=True).start()


def request_stop(_number: int = signal.SIGUSR1, _frame: object = None) -> None:
    """Request the end of the run after the running case; a signal handler."""
    _stop.set()


def stop_requested() -> bool:
    """Return True if the run is to end after the running case."""
    return _stop.is_set()


def _end_with(parent: int) -> None:
    """End this process when ``parent`` has ended; a killed launcher cannot end its ranks."""
    while os.getppid() == parent:
        sleep(_PERIOD)
    os._exit(INTERRUPTED)


def child_preparation() -> Callable[[], None]:
    """Return the function that a launcher's process calls between fork and exec.

    It makes the launcher receive SIGTERM when this process ends in any way. It also makes the launcher ignore
    SIGUSR1, as batch systems send it to all processes, until it installs its own handler. Linux only.
    """
    import ctypes

    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def prepare_child() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # the parent ended before prctl
            os._exit(INTERRUPTED)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)

    return prepare_child
