"""Load and start the MPI library. Loading identifies it; starting may end the process."""

from __future__ import annotations

import faulthandler
import os
import sys
import traceback
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from hpcdl.exit_codes import FAILED
from hpcdl.launch.status_files import write_status

if TYPE_CHECKING:
    from collections.abc import Iterator


class Library(NamedTuple):
    """Identity of an MPI library."""

    name: str
    """"MPICH", "Open MPI", ..."""
    major: int
    """First number of its version."""
    text: str
    """Full version text; MPICH's includes its configuration."""


def load() -> Library:
    """Load the library that mpi4py uses, without starting MPI."""
    import mpi4py

    mpi4py.rc.initialize = False
    mpi4py.rc.finalize = True  # without initialize, mpi4py would not finalize at exit
    from mpi4py import MPI

    name, version = MPI.get_vendor()
    return Library(name, version[0], MPI.Get_library_version())


START_LIMIT: Final = 300.0
"""Time limit of MPI_Init (s); a thousand ranks need less than a minute."""


def start(limit: float = START_LIMIT) -> None:
    """Start MPI after :func:`load`.

    Ends the process after ``limit`` seconds, with a traceback that names this function. Another process of the job
    may have failed before, which launchers do not always notice.
    """
    from mpi4py import MPI

    faulthandler.dump_traceback_later(limit, exit=True)  # a Python thread could not run: MPI_Init keeps the GIL
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "suspicious MPI execution environment")  # launcher_check reports it
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
    faulthandler.cancel_dump_traceback_later()


def abort(code: int) -> NoReturn:
    """End all ranks of the job; this one too if the library's own call returns, as MPICH's does now and then."""
    from mpi4py import MPI

    sys.stdout.flush()
    sys.stderr.flush()
    MPI.COMM_WORLD.Abort(code)
    os._exit(code)


@contextmanager
def abort_on_error() -> Iterator[None]:
    """Context manager: an exception in the body ends all ranks, because others would wait for this one.

    An error of the system, such as a full disk, is the exit code of rank 0 too, so that nothing is started again.
    """
    try:
        yield
    except BaseException as error:  # noqa: BLE001 - also KeyboardInterrupt and SystemExit
        from mpi4py import MPI

        if isinstance(error, (MemoryError, OSError)):  # a message is enough, the program is not at fault
            print(f"hpcdl: rank {MPI.COMM_WORLD.rank}: {' '.join(str(error).split())}", file=sys.stderr)
            write_status(FAILED, MPI.COMM_WORLD.rank)
        else:
            traceback.print_exc()
        abort(FAILED)
