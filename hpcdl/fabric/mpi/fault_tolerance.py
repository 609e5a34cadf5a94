"""Fault tolerance by MPI's user-level failure mitigation (ULFM), which Open MPI 5 has.

An operation that needs a failed rank fails, and so does a receive from any rank until the failure is acknowledged;
other operations succeed (Bland et al. 2013, "Post-failure recovery of MPI communication capability"). Without ULFM
the launcher ends the job.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import sleep
from typing import TypeVar

from mpi4py import MPI

from hpcdl.fabric.comm import ANY, Array, Comm, PeerLost, Status, Wrapper
from hpcdl.fabric.mpi.comm import MpiComm
from hpcdl.fabric.task import Program

T = TypeVar("T")

_FAILED = (MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING)


def failed_ranks(communicator: MPI.Intracomm) -> list[int]:
    """Return the failed ranks of ``communicator`` in the order in which their failures became known."""
    failed = communicator.Get_failed()
    members = communicator.Get_group()
    return list(failed.Translate_ranks(range(failed.size), members))


def regroup(comm: MpiComm) -> MpiComm:
    """Return the ranks of ``comm`` that have not failed. Collective among them.

    The others sleep until rank 0 calls: MPI_Comm_shrink spins.
    """
    library = comm.library
    if library.rank == 0:
        for other in range(1, library.size):
            with suppress(MPI.Exception):  # it has failed
                library.send(None, other)
    else:
        started = library.irecv(source=0)
        while not started.test()[0]:
            sleep(0.005)
    return comm.shrink()


def depart(comm: MpiComm, code: int) -> int:
    """Return the exit code if no rank has failed; otherwise exit the process with it. ``comm`` is the survivors.

    Open MPI 5.0's MPI_Finalize may wait for failed ranks without limit. Rank 0 exits last: its messages may be
    under way.
    """
    library = comm.library
    if library.size == MPI.COMM_WORLD.size:
        return code
    if library.rank == 0:
        for other in range(1, library.size):
            with suppress(MPI.Exception):  # it has exited
                library.recv(source=other)
    else:
        library.send(None, 0)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@dataclass(eq=False)
class FaultTolerant(Wrapper[MpiComm]):
    """A communicator for programs that can lose a rank: operations that need a failed rank raise PeerLost."""

    _acknowledged: dict[int, int] = field(default_factory=dict, init=False)
    """Number of acknowledged failures on each channel."""

    async def send(self, buffer: Array, dest: int, tag: int = 0) -> None:
        await self._unless_lost(self._comm.send(buffer, dest, tag), dest)

    async def recv(self, buffer: Array, source: int = ANY, tag: int = ANY) -> Status:
        return await self._unless_lost(self._comm.recv(buffer, source, tag), source)

    async def exchange(self, outgoing: Array, dest: int, incoming: Array, source: int, tag: int = 0) -> Status:
        exchange = self._comm.exchange(outgoing, dest, incoming, source, tag)
        return await self._unless_lost(exchange, dest, source)

    async def native(self, collective: str, buffer: Array, counts: Sequence[int] = ()) -> None:
        await self._unless_lost(self._comm.native(collective, buffer, counts), *range(self._comm.size))

    async def survivors(self) -> Comm:
        return self._wrap(self._comm.shrink())

    async def _unless_lost(self, operation: Program[T], *peers: int) -> T:
        """Return the result of an operation with ``peers``, ANY allowed. PeerLost: it needs a failed rank."""
        try:
            return await operation
        except MPI.Exception as error:
            if error.Get_error_class() not in _FAILED:
                raise
        channel = self._comm.channel
        failed = failed_ranks(channel)
        for peer in peers:
            if peer in failed:
                raise PeerLost(peer)
        known = self._acknowledged.get(channel.handle, 0) + 1
        self._acknowledged[channel.handle] = known
        channel.Ack_failed(known)
        raise PeerLost(failed[known - 1])
