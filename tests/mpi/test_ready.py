"""Ranks on different hosts wait for each other before they exchange long messages; here each has a host of its own."""

from functools import cache
from time import perf_counter

import numpy as np
import pytest
from contract.aggregations import OF_A_LIBRARY, SCHEMES, scheme
from contract.operands import operands
from mpi4py import MPI

from hpcdl.fabric.comm import LONG
from hpcdl.fabric.mpi import Mpi
from hpcdl.fabric.mpi_comm import MpiComm

pytestmark = pytest.mark.mpi

needs_two = pytest.mark.skipif(MPI.COMM_WORLD.size < 2, reason="needs 2 ranks")
SHORT = np.zeros(LONG - 1, np.uint8)


@cache
def apart():
    mpi = Mpi()
    mpi.memory.host = mpi.comm.rank
    mpi.comm = MpiComm(mpi, MPI.COMM_WORLD.Dup(), 0)
    return mpi


def exchanged(outgoing, incoming, *, late):
    """Whether rank 1 sees rank 0's message before it exchanges itself, ``late`` seconds after rank 0."""
    mpi, found = apart(), False
    comm = mpi.comm
    comm.library.Barrier()
    if comm.rank == 1:
        until = perf_counter() + late
        while perf_counter() < until and not found:
            found = comm.library.iprobe(source=0)
    if comm.rank < 2:
        mpi.run(comm.exchange(outgoing, 1 - comm.rank, incoming, 1 - comm.rank))
    return comm.library.bcast(found, root=1)


@needs_two
def test_a_long_message_waits_until_the_partner_is_ready():
    mine = np.full(LONG, apart().comm.rank, np.uint8)
    theirs = np.full(LONG, 255, np.uint8)
    assert not exchanged(mine, theirs, late=0.2)
    if apart().comm.rank < 2:
        assert (theirs == 1 - apart().comm.rank).all()


@needs_two
def test_a_short_one_does_not():
    assert exchanged(SHORT.copy(), SHORT.copy(), late=5)


@needs_two
@pytest.mark.parametrize("long", [0, 1])
def test_messages_may_differ_and_room_may_be_left(long):
    """Whoever sends a long one waits; a word that nobody waited for does no harm later."""
    comm = apart().comm
    for _ in range(3):
        outgoing = np.full(2 * LONG if comm.rank == long else 3, comm.rank + 1, np.uint8)
        incoming = np.zeros(3 * LONG, np.uint8)
        exchanged(outgoing, incoming, late=0)
        if comm.rank < 2:
            assert incoming.sum() == (3 if comm.rank == long else 2 * LONG) * (2 - comm.rank)


@pytest.mark.parametrize("name", sorted({*SCHEMES} - {*OF_A_LIBRARY, "two_shot"}))
def test_every_scheme_sums_long_vectors(name):
    """And beside two others of it, whose words are for anybody's message of their own."""

    async def program(comm, vectors):
        tasks = [comm.start(scheme(name)(comm, vector)) for vector in vectors[1:]]
        await scheme(name)(comm, vectors[0])
        for task in tasks:
            await task

    comm = apart().comm
    rows, expected = operands(comm.size, LONG + 3)
    vectors = [rows[comm.rank].copy() for _ in range(3)]
    apart().run(program(comm, vectors))
    for vector in vectors:
        assert (vector == expected).all()
