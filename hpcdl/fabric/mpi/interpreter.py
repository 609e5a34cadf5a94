"""The interpreter for MPI: mpi4py, arrays of numpy or cupy.

A rank with one program and its own core calls the library's blocking operations. With started programs in
flight every operation is a non-blocking request and the programs take turns; so it is where ranks outnumber cores,
because a blocked library spins on the core that its peer needs. Local work then runs on a second thread, where
numpy, BLAS and compiled kernels release the interpreter lock and messages progress; short work stays on the first
thread and is followed by a poll.
"""

from __future__ import annotations

from mpi4py import MPI

from hpcdl.fabric.mpi.backoff import Backoff, here
from hpcdl.fabric.mpi.comm import MpiComm
from hpcdl.fabric.mpi.scheduler import Scheduler


def library_version() -> dict[str, str]:
    """Name and version of the MPI library, for the record."""
    name, version = MPI.get_vendor()
    return {
        "library": name,
        "version": ".".join(map(str, version)),
        "text": MPI.Get_library_version().strip("\0 \n").partition("\n")[0],
    }


class Mpi(Scheduler):
    """This process's rank in an MPI job; ``comm`` holds the ranks of ``communicator``."""

    def __init__(self, communicator: MPI.Intracomm = MPI.COMM_WORLD) -> None:
        super().__init__(_ranks_per_core(communicator))
        self.comm = MpiComm(self, communicator.Dup(), 0)

    def awake(self, comm: MpiComm) -> None:
        """From now on only the ranks of ``comm`` use cores, the others sleep. Each of those must call."""
        self.backoff = Backoff(_ranks_per_core(comm.library))
        self.may_block = self.alone and not self.backoff.oversubscribed


def _ranks_per_core(communicator: MPI.Intracomm) -> float:
    mine = here()
    return mine.ranks_per_core(communicator.allgather(mine))
