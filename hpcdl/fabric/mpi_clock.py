"""Clocks of ranks, compared with rank 0's."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter_ns, sleep
from typing import TYPE_CHECKING, Final

from hpcdl.fabric.patience import here

if TYPE_CHECKING:
    from mpi4py import MPI

_NAMESPACE: Final = Path("/proc/self/ns/time")
_ROUND_TRIPS: Final = 10
_TURN_SECONDS: Final = 1e-3


def compared(communicator: MPI.Intracomm) -> tuple[int, int]:
    """What to add to this rank's clock to get rank 0's, and how far off that may be, in ns. Collective.

    Ranks that run under one kernel, in one namespace of time, have one clock: emulated hosts do. Of several round
    trips the shortest counts, and rank 0 is taken to have answered in the middle of it, so that the error is at
    most half of it (Cristian 1989). Until its turn a rank sleeps: others may need its core.
    """
    keepers = communicator.allgather(_keeper())
    offset = error = 0
    for other in range(1, communicator.size):
        if keepers[other] == keepers[0]:
            continue
        if communicator.rank == 0:
            communicator.send(None, other)
            for _ in range(_ROUND_TRIPS):
                communicator.recv(source=other)
                communicator.send(perf_counter_ns(), other)
        elif communicator.rank == other:
            while not communicator.iprobe(source=0):
                sleep(_TURN_SECONDS)
            communicator.recv(source=0)
            trips = []
            for _ in range(_ROUND_TRIPS):
                begin = perf_counter_ns()
                communicator.send(None, 0)
                theirs = communicator.recv(source=0)
                end = perf_counter_ns()
                trips.append((end - begin, theirs - (begin + end) // 2))
            trip, offset = min(trips)
            error = -(-trip // 2)
    return offset, error


def _keeper() -> str:
    """Who keeps this process's time."""
    namespace = _NAMESPACE.readlink() if _NAMESPACE.exists() else ""
    return f"{here().machine} {namespace}"
