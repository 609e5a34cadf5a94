"""Clock offsets between ranks and rank 0; a preflight imports it before MPI is started."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns, sleep
from typing import TYPE_CHECKING, Final

from hpcdl.fabric.mpi.backoff import here

if TYPE_CHECKING:
    from mpi4py import MPI

_NAMESPACE: Final = Path("/proc/self/ns/time")
_ROUND_TRIPS: Final = 10
_TURN_SECONDS: Final = 1e-3


def compared(communicator: MPI.Intracomm, read: Callable[[], int] = perf_counter_ns) -> tuple[int, int]:
    """Return the offset from this rank's clock to rank 0's and its greatest error, in ns. Collective.

    ``read`` returns the time of the clock. Ranks under one kernel in one time namespace have one clock, as
    emulated hosts do. The offset is from the shortest of several round trips, with rank 0's answer in its middle,
    so that the error is at most half of it (Cristian 1989). A rank sleeps until its turn, because other ranks may
    need its core.
    """
    clocks = communicator.allgather(_clock_name())
    offset = error = 0
    for other in range(1, communicator.size):
        if clocks[other] == clocks[0]:
            continue
        if communicator.rank == 0:
            communicator.send(None, other)
            for _ in range(_ROUND_TRIPS):
                communicator.recv(source=other)
                communicator.send(read(), other)
        elif communicator.rank == other:
            while not communicator.iprobe(source=0):
                sleep(_TURN_SECONDS)
            communicator.recv(source=0)
            trips = []
            for _ in range(_ROUND_TRIPS):
                begin = read()
                communicator.send(None, 0)
                theirs = communicator.recv(source=0)
                end = read()
                trips.append((end - begin, theirs - (begin + end) // 2))
            # the shortest trip had the least delay by other load, on both ways
            trip, offset = min(trips)
            error = -(-trip // 2)
    return offset, error


def _clock_name() -> str:
    """Return a name of the clock of this process: its machine and its time namespace."""
    namespace = _NAMESPACE.readlink() if _NAMESPACE.exists() else ""
    return f"{here().machine} {namespace}"
