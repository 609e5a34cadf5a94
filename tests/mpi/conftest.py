"""The fabric over real MPI: every rank of ``mpirun -n P python -m pytest --with-mpi tests/mpi`` runs every test.

A rank that fails leaves the others waiting, so the first failure, or a test that takes too long, ends the job.
"""

import faulthandler
import os
import sys
from functools import cache

import numpy as np
import pytest
from mpi4py import MPI
from threadpoolctl import threadpool_limits

from hpcdl.fabric.mpi.interpreter import Mpi

pytest.register_assert_rewrite("contract")

LIMIT = 60
"""Time limit of one test in seconds; tests take a few."""


STDERR = pytest.StashKey[int]()
"""File descriptor of the uncaptured standard error."""


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    with config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        config.stash[STDERR] = os.dup(2)
    if MPI.COMM_WORLD.rank:  # all ranks report the same
        config.pluginmanager.unregister(name="terminalreporter")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    if not item.config.getoption("--with-mpi"):
        return (yield)
    # a watchdog thread, because the main thread may be inside the library and see no signal
    faulthandler.dump_traceback_later(LIMIT, exit=True, file=item.config.stash[STDERR])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def pytest_runtest_logreport(report):
    if report.failed and MPI.COMM_WORLD.size > 1:
        print(f"\nrank {MPI.COMM_WORLD.rank}: {report.nodeid}\n{report.longreprtext}", file=sys.stderr, flush=True)
        MPI.COMM_WORLD.Abort(1)


class OverMpi:
    """Runner of a program on the ``ranks`` ranks of the job; this process is one of them."""

    def __init__(self, mpi):
        self._mpi = mpi
        self.ranks = mpi.comm.size

    def run(self, program):
        result = self._mpi.run(program(self._mpi.comm))
        return self._mpi.comm.library.allgather(result)

    def local(self, values):
        """Return the values of this process's ranks from a list with one value per rank."""
        return [values[self._mpi.comm.rank]]


@pytest.fixture(scope="session")
def mpi():
    with threadpool_limits(1):  # the ranks occupy all cores
        yield Mpi()


@pytest.fixture(scope="session")
def difference(mpi):
    """Return a function: the largest difference from training on rank 0 with the whole batch. Collective."""
    from contract import training  # late, so that pytest rewrites its asserts

    @cache
    def by_one_rank(dtype):
        found = training.by_one_rank(dtype) if mpi.comm.rank == 0 else None
        mpi.comm.sleeping_barrier()
        return mpi.comm.library.bcast(found)

    return lambda parameters, dtype: np.abs(parameters - by_one_rank(dtype)).max()


@pytest.fixture
def fabric(mpi):
    return OverMpi(mpi)


@pytest.fixture
def group(mpi):
    if mpi.comm.size == 1:
        pytest.skip("needs two ranks")
    return OverMpi(mpi)
