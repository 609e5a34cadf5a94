"""Staged transport over MPI: arrays outside host memory, sent in pieces by asynchronous copies."""

import numpy as np
import pytest
from contract.aggregations import SCHEMES, TRAITS, scheme
from contract.device import OnDevice
from contract.operands import awkward_lengths, operands
from fabric.staging import SlowCopies

from hpcdl.fabric.comm import ANY
from hpcdl.fabric.device.transport import Staged
from hpcdl.fabric.mpi.comm import Mpi

pytestmark = pytest.mark.mpi

CHUNK = 4096

ANYWHERE = [name for name in SCHEMES if name != "native" and TRAITS[name].memory == "any"]


@pytest.fixture(scope="module")
def staged(communicator):
    mpi = Mpi(communicator)
    mpi.transport = Staged(SlowCopies(CHUNK))
    return mpi


@pytest.fixture(autouse=True)
def slots_come_back(staged):
    yield
    assert staged.transport._copies.borrowed == 0


@pytest.mark.parametrize("name", ANYWHERE)
def test_every_scheme_sums_them(name, staged):
    comm = staged.comm
    for length in (*awkward_lengths(comm.size), CHUNK // 4, CHUNK // 4 + 1, 2 * CHUNK):
        rows, expected = operands(comm.size, length)
        mine = OnDevice(rows[comm.rank].copy())
        staged.run(scheme(name)(comm, mine))
        assert (mine.held == expected).all(), f"{length} elements"


def test_receives_from_any_source(staged):
    """Long messages of many ranks at once, in pieces, are not mixed."""
    comm = staged.comm
    rank, size = comm.rank, comm.size
    got = OnDevice(np.zeros(20_000))

    async def program(comm):
        if rank:
            await comm.send(OnDevice(np.full(10_000 + rank, float(rank))), 0, rank)
        seen = set()
        for _ in range(size - 1 if rank == 0 else 0):
            status = await comm.recv(got, ANY, ANY)
            assert (status.tag, status.count) == (status.source, 10_000 + status.source)
            assert (got.held[: status.count] == status.source).all()
            seen.add(status.source)
        await comm.native("barrier", np.empty(0))  # otherwise the wildcard would match messages of the next test
        return seen

    assert staged.run(program(comm)) == (set(range(1, size)) if rank == 0 else set())


def test_counts_and_events(staged):
    comm = staged.comm
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    staged.events = events = []
    before = staged.counters()
    try:
        staged.run(comm.exchange(OnDevice(np.zeros(3000)), right, OnDevice(np.zeros(3000)), left))
    finally:
        staged.events = None
    after = staged.counters()
    assert (after.messages - before.messages, after.bytes - before.bytes) == (1, 24_000)
    assert [(task, label, peer, size) for task, label, _, _, peer, size in events] == [
        (0, "recv", left, 24_000),
        (0, "send", right, 24_000),
    ]
