"""A rank of a real job dies, and the others go on: ``mpirun --with-ft ulfm -n 4`` or more, Open MPI."""

import atexit
import os
import signal

import pytest
from contract.losses import lost, number
from mpi4py import MPI

from hpcdl.fabric.comm import ANY, PeerLost
from hpcdl.fabric.mpi import library_version
from hpcdl.fabric.mpi_failure import depart, fault_tolerant
from hpcdl.launch.mpirun import intolerance

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(
        MPI.COMM_WORLD.size < 4 or intolerance(os.environ, library_version()["library"]) is not None,
        reason="needs four ranks, and a job that outlives one of them",
    ),
]


async def serve(comm):
    """Count messages and deaths until both must be there: two messages from each, one from who dies, who is told."""
    last = comm.size - 1
    came, dead = [], []
    while len(came) + len(dead) < 2 * last:
        try:
            status = await comm.recv(number(), ANY)
        except PeerLost as loss:
            dead.append(loss.rank)
        else:
            came.append(status.source)
            if status.source == last:
                await comm.send(number(), last)
    return sorted(came), dead


async def work(comm):
    last = comm.size - 1
    await comm.send(number(), 0)
    if comm.rank == last:
        await comm.recv(number(), 0)
        os.kill(os.getpid(), signal.SIGKILL)
    assert await lost(comm.recv(number(), last)) == last
    await comm.send(number(), 0)


async def program(comm, *, beside):
    """What it is to be the living; with ``beside`` the server is a program that was started."""
    last = comm.size - 1
    if comm.rank:
        await work(comm)
    else:
        serving = serve(comm)
        came, dead = await (comm.start(serving, shared_tags=True) if beside else serving)
        assert dead == [last]
        assert came == sorted([*range(1, last), *range(1, last + 1)])
    assert await lost(comm.exchange(number(), last, number(), last)) == last
    living = await comm.survivors()
    total = number(living.rank)
    await living.native("allreduce", total)
    assert (living.rank, living.size, total[0]) == (comm.rank, last, last * (last - 1) / 2)
    return living


def test_the_others_go_on_and_so_they_do_after_the_next(mpi):
    """Ranks that die take part in a test no longer, so this is one test."""
    living = mpi.run(program(fault_tolerant(mpi.comm), beside=False))
    living = mpi.run(program(living, beside=True))
    atexit.register(depart, living, 0)
