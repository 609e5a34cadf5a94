"""Jobs that outlive a rank: MPI's user-level failure mitigation (ULFM), which Open MPI 5 has.

An operation that needs a dead rank fails, and so does a receive from any rank until the failure is acknowledged;
all else goes on (Bland et al. 2013, "Post-failure recovery of MPI communication capability"). Where there is no
such thing the launcher ends the job.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from time import sleep
from typing import TYPE_CHECKING, Any, cast

from mpi4py import MPI

from hpcdl.fabric.comm import ANY, Array, PeerLost, Status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.fabric.comm import Comm
    from hpcdl.fabric.mpi_comm import MpiComm

_FAILED = (MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING)


def received(request: MPI.Request, status: MPI.Status) -> bool:
    """Whether a receive is done; one that fails is withdrawn, lest it take a message that is meant for another.

    Raises MPI.Exception.
    """
    try:
        return request.Test(status)
    except MPI.Exception:
        if request != MPI.REQUEST_NULL:  # from anybody: a rank is gone, and others may still send
            request.Cancel()
            request.Wait(status)
            if not status.Is_cancelled():
                return True  # a message came first; the next receive tells of the loss
        raise


def gone(communicator: MPI.Intracomm) -> list[int]:
    """Ranks of ``communicator`` known to be dead, in the order in which they became known."""
    failed = communicator.Get_failed()
    everybody = communicator.Get_group()
    return list(failed.Translate_ranks(range(failed.size), everybody))


def regroup(comm: MpiComm) -> MpiComm:
    """The ranks of ``comm`` that are still there; each of them must call.

    Until rank 0 does the others wait asleep: shrinking keeps a core busy.
    """
    library = comm.library
    if library.rank == 0:
        for other in range(1, library.size):
            with suppress(MPI.Exception):  # a dead one needs no telling
                library.send(None, other)
    else:
        told = library.irecv(source=0)
        while not told.test()[0]:
            sleep(0.005)
    return comm.shrink()


def depart(comm: MpiComm, code: int) -> int:
    """The exit code, where nobody has died; else end the process with it, ``comm`` being those that are left.

    Open MPI 5.0's MPI_Finalize may wait for the dead for ever. Rank 0 goes last: it may have said something that
    the others have not heard yet.
    """
    library = comm.library
    if library.size == MPI.COMM_WORLD.size:
        return code
    if library.rank == 0:
        for other in range(1, library.size):
            with suppress(MPI.Exception):  # it has left already
                library.recv(source=other)
    else:
        library.send(None, 0)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class _FaultTolerant:
    def __init__(self, comm: MpiComm) -> None:
        self._comm = comm
        self._acknowledged: dict[int, int] = {}
        """How many failures on each channel."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)

    async def send(self, buffer: Array, dest: int, tag: int = 0) -> None:
        """See :class:`hpcdl.fabric.comm.Comm`."""
        try:
            await self._comm.send(buffer, dest, tag)
        except MPI.Exception as error:
            raise self._lost(error, dest) from None

    async def recv(self, buffer: Array, source: int = ANY, tag: int = ANY) -> Status:
        """See :class:`hpcdl.fabric.comm.Comm`."""
        try:
            return await self._comm.recv(buffer, source, tag)
        except MPI.Exception as error:
            raise self._lost(error, source) from None

    async def exchange(self, outgoing: Array, dest: int, incoming: Array, source: int, tag: int = 0) -> Status:
        """See :class:`hpcdl.fabric.comm.Comm`."""
        try:
            return await self._comm.exchange(outgoing, dest, incoming, source, tag)
        except MPI.Exception as error:
            raise self._lost(error, dest, source) from None

    async def native(self, collective: str, buffer: Array, counts: Sequence[int] = ()) -> None:
        """See :class:`hpcdl.fabric.comm.Comm`."""
        try:
            await self._comm.native(collective, buffer, counts)
        except MPI.Exception as error:
            raise self._lost(error, *range(self._comm.size)) from None

    async def split(self, color: int, key: int = 0) -> Comm:
        """See :class:`hpcdl.fabric.comm.Comm`."""
        return fault_tolerant(await self._comm.split(color, key))

    async def survivors(self) -> Comm:
        """See :class:`hpcdl.fabric.comm.Comm`."""
        return fault_tolerant(self._comm.shrink())

    def _lost(self, error: MPI.Exception, *peers: int) -> Exception:
        """What ``error`` means to a program that wanted something of one of ``peers``, or of anybody."""
        if error.Get_error_class() not in _FAILED:
            return error
        channel = self._comm.channel
        dead = gone(channel)
        for peer in peers:
            if peer in dead:
                return PeerLost(peer)
        known = self._acknowledged.get(channel.handle, 0) + 1
        self._acknowledged[channel.handle] = known
        channel.Ack_failed(known)
        return PeerLost(dead[known - 1])


def fault_tolerant(comm: MpiComm) -> Comm:
    """Return ``comm`` as a program sees it that can do without a rank: what needs a dead one raises PeerLost."""
    return cast("Comm", _FaultTolerant(comm))
