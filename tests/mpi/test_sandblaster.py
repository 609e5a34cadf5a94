"""Sandblaster over MPI equals Sandblaster on one rank."""

from functools import cache

import numpy as np
import pytest
from contract import quadratic, quartic

from hpcdl.fabric.virtual.inprocess import in_process
from hpcdl.trace.recorder import Evaluation, Recorder

pytestmark = pytest.mark.mpi

STEPS = 8


@cache
def alone(size):
    """Return the parameters of one rank, which another test compares with a plain loop."""
    return in_process(1).run(lambda comm: quartic.descend(comm, quartic.session(size=size, steps=STEPS)))[0]


@pytest.mark.parametrize(
    ("servers", "backup", "size"),
    [
        *((servers, backup, quartic.SIZE) for servers in (0, 1, 3) for backup in (True, False)),
        (0, True, 10_007),
        (3, False, 10_007),
    ],
)
def test_any_number_of_ranks_equals_one_rank(servers, backup, size, mpi):
    if servers and mpi.comm.size < servers + 2:
        pytest.skip("needs more ranks")
    recorder = Recorder(events=False)
    mine = quartic.session(recorder, size=size, steps=STEPS)
    found = mpi.run(quartic.descend(mpi.comm, mine, servers=servers, backup=backup))
    library = mpi.comm.library
    assert len(set(library.allgather(found.tobytes()))) == 1
    if mpi.comm.rank == 0:  # all ranks have equal parameters
        np.testing.assert_allclose(found, alone(size), rtol=0, atol=quartic.TOLERANCE)
    mpi.comm.sleeping_barrier()
    assert library.allreduce(sum(row.images for row in recorder.steps)) == STEPS * quadratic.IMAGES
    last = Evaluation(*recorder.evaluations[-1])
    assert len(set(library.allgather((last.step, last.loss, last.accuracy, last.samples)))) == 1
    assert last.step == STEPS
