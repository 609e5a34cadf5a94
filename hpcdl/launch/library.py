"""The MPI library in two steps: loaded, when it says what it is, and started, when it may end the process."""

from __future__ import annotations

import warnings
from typing import NamedTuple


class Library(NamedTuple):
    """An MPI library."""

    name: str
    """"MPICH", "Open MPI", ..."""
    major: int
    """First number of its version."""
    text: str
    """All that it says of itself: MPICH how it was configured, among other things."""


def load() -> Library:
    """Load the library that mpi4py is on; MPI is not started."""
    import mpi4py

    mpi4py.rc.initialize = False
    mpi4py.rc.finalize = True  # or what is not started by the import would not be ended at exit
    from mpi4py import MPI

    name, version = MPI.get_vendor()
    return Library(name, version[0], MPI.Get_library_version())


def start() -> None:
    """Start MPI, once loaded, as the import of mpi4py would have."""
    from mpi4py import MPI

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "suspicious MPI execution environment")  # the guard says it better
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
