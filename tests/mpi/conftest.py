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

from hpcdl.fabric.mpi import Mpi

pytest.register_assert_rewrite("contract")

LIMIT = 60
"""Seconds that one test may take; none takes more than a few."""


STDERR = pytest.StashKey[int]()
"""The one that nobody captures."""


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
    # a thread of its own, for the main one may be inside the library and see no signal
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
    """One rank is here, ``ranks`` are in the job."""

    def __init__(self, mpi):
        self._mpi = mpi
        self.ranks = mpi.comm.size

    def run(self, program):
        result = self._mpi.run(program(self._mpi.comm))
        return self._mpi.comm.library.allgather(result)

    def local(self, values):
        """Of a list with one value per rank, those of the ranks in this process."""
        return [values[self._mpi.comm.rank]]


@pytest.fixture(scope="session")
def mpi():
    with threadpool_limits(1):  # ranks are enough for the cores
        yield Mpi()


@pytest.fixture(scope="session")
def difference(mpi):
    """The largest to the parameters of one rank with the whole batch, which rank 0 trains for all. Collective."""
    from contract import training  # late: its asserts are to be rewritten

    @cache
    def by_one_rank(dtype):
        found = training.by_one_rank(dtype) if mpi.comm.rank == 0 else None
        mpi.comm.rest()
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
