"""Sandblaster over MPI is L-BFGS on one processor."""

from functools import cache

import numpy as np
import pytest
from contract import bowl, valley

from hpcdl.fabric.inprocess import in_process
from hpcdl.trace.recorder import Evaluation, Recorder

pytestmark = pytest.mark.mpi

STEPS = 8


@cache
def alone(size):
    """The parameters by one rank, checked elsewhere against a plain loop."""
    return in_process(1).run(lambda comm: valley.descend(comm, valley.session(size=size, steps=STEPS)))[0]


@pytest.mark.parametrize(
    ("servers", "backup", "size"),
    [
        *((servers, backup, valley.SIZE) for servers in (0, 1, 3) for backup in (True, False)),
        (0, True, 20_011),
        (3, False, 20_011),
    ],
)
def test_any_number_of_ranks_does_what_one_does(servers, backup, size, mpi):
    if servers and mpi.comm.size < servers + 2:
        pytest.skip("needs more ranks")
    recorder = Recorder(events=False)
    mine = valley.session(recorder, size=size, steps=STEPS)
    found = mpi.run(valley.descend(mpi.comm, mine, servers=servers, backup=backup))
    library = mpi.comm.library
    assert len(set(library.allgather(found.tobytes()))) == 1
    if mpi.comm.rank == 0:  # all have the same
        np.testing.assert_allclose(found, alone(size), rtol=0, atol=valley.TOLERANCE)
    mpi.comm.rest()
    assert library.allreduce(sum(row.images for row in recorder.steps)) == STEPS * bowl.IMAGES
    last = Evaluation(*recorder.evaluations[-1])
    assert len(set(library.allgather((last.step, last.loss, last.accuracy, last.samples)))) == 1
    assert last.step == STEPS
