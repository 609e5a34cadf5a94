"""A rank of an MPI job fails and the others continue: Open MPI, ``mpirun --with-ft ulfm -n 4`` or more."""

import atexit
import os
import signal

import pytest
from contract.losses import lost, number

from hpcdl.fabric.comm import ANY, PeerLost
from hpcdl.fabric.mpi.comm import library_version
from hpcdl.fabric.mpi.fault_tolerance import FaultTolerant, depart
from hpcdl.launch.mpirun import fault_tolerance_obstacle

pytestmark = [
    pytest.mark.mpi(min_size=4),
    pytest.mark.skipif(
        fault_tolerance_obstacle(os.environ, library_version()["library"]) is not None,
        reason="needs a job that survives the failure of a rank",
    ),
]


async def serve(comm):
    """Return the senders of all messages and the failed ranks; the failing rank sends one message, others two."""
    last = comm.size - 1
    senders, failed = [], []
    while len(senders) + len(failed) < 2 * last:
        try:
            status = await comm.recv(number(), ANY)
        except PeerLost as loss:
            failed.append(loss.rank)
        else:
            senders.append(status.source)
            if status.source == last:
                await comm.send(number(), last)
    return sorted(senders), failed


async def work(comm):
    last = comm.size - 1
    await comm.send(number(), 0)
    if comm.rank == last:
        await comm.recv(number(), 0)
        os.kill(os.getpid(), signal.SIGKILL)
    assert await lost(comm.recv(number(), last)) == last
    await comm.send(number(), 0)


async def program(comm, *, started):
    """Lose the last rank and return the survivors; with ``started`` the server is a started program."""
    last = comm.size - 1
    if comm.rank:
        await work(comm)
    else:
        serving = serve(comm)
        senders, failed = await (comm.start(serving, shared_tags=True) if started else serving)
        assert failed == [last]
        assert senders == sorted([*range(1, last), *range(1, last + 1)])
    assert await lost(comm.exchange(number(), last, number(), last)) == last
    survivors = await comm.survivors()
    total = number(survivors.rank)
    await survivors.native("allreduce", total)
    assert (survivors.rank, survivors.size, total[0]) == (comm.rank, last, last * (last - 1) / 2)
    return survivors


def test_the_survivors_continue_after_one_and_two_failures(mpi):
    """One test for both failures, because failed ranks take part in no further test."""
    survivors = mpi.run(program(FaultTolerant(mpi.comm), started=False))
    survivors = mpi.run(program(survivors, started=True))
    atexit.register(depart, survivors._comm, 0)
