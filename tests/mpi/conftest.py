"""The fabric over real MPI: ``mpirun -n 8 python -m pytest --with-mpi tests/mpi`` tests each number of ranks in one job.

A test with the fixture ``mpi`` runs on the first 1, 2, 3, 4, 5 and 8 ranks while the others sleep. A rank that fails
leaves the others waiting, so the first failure, or a test that takes too long, ends the job.
"""

import faulthandler
import os
import sys
from functools import cache

import numpy as np
import pytest
from mpi4py import MPI
from threadpoolctl import threadpool_limits

from hpcdl.fabric.mpi.backoff import sleep_until
from hpcdl.fabric.mpi.comm import Mpi
from hpcdl.fabric.virtual.clocks import in_process

LIMIT = 60
"""Time limit of one test in seconds; tests take a few."""

WORLD = MPI.COMM_WORLD

SIZES = [size for size in (1, 2, 3, 4, 5, 8) if size <= WORLD.size]

PARTS = {size: WORLD.Split(0 if WORLD.rank < size else MPI.UNDEFINED) for size in SIZES}
"""Communicators of the first ranks of the job, by size."""

STDERR = pytest.StashKey[int]()
"""File descriptor of the uncaptured standard error."""


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    with config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        config.stash[STDERR] = os.dup(2)
    if WORLD.rank:  # all ranks report the same
        config.pluginmanager.unregister(name="terminalreporter")


def pytest_generate_tests(metafunc):
    """Parametrize tests with the number of ranks; ``pytest.mark.mpi(min_size=...)`` states the fewest."""
    if "communicator" in metafunc.fixturenames:
        fewest = max(mark.kwargs.get("min_size", 1) for mark in metafunc.definition.iter_markers("mpi"))
        sizes = [size for size in SIZES if size >= fewest]
        ids = [f"{size}-ranks" for size in sizes]
        metafunc.parametrize("communicator", sizes, ids=ids, indirect=True, scope="session")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    items.sort(key=ranks_of)


def ranks_of(item):
    """Return the number of ranks that run a test."""
    ranks = item.callspec.params.get("communicator") if hasattr(item, "callspec") else None
    return ranks if isinstance(ranks, int) else WORLD.size  # without a parameter if the job has too few ranks


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    if not item.config.getoption("--with-mpi"):
        return (yield)
    # a watchdog thread, because the main thread may be inside the library and see no signal
    faulthandler.dump_traceback_later(LIMIT, exit=True, file=item.config.stash[STDERR])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
        if nextitem is not None and ranks_of(nextitem) != ranks_of(item):
            sleep_until(WORLD.Ibarrier().Test)  # idle ranks wait here, asleep


@pytest.hookimpl(specname="pytest_runtest_protocol", tryfirst=True)
def pytest_leave_out_idle_ranks(item):
    return True if WORLD.rank >= ranks_of(item) else None


def pytest_runtest_logreport(report):
    if report.failed and WORLD.size > 1:
        print(f"\nrank {WORLD.rank}: {report.nodeid}\n{report.longreprtext}", file=sys.stderr, flush=True)
        WORLD.Abort(1)


class OverMpi:
    """Runner of a program on all ranks of ``mpi``; this process is one of them."""

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
def communicator(request):
    return PARTS[request.param]


@pytest.fixture(scope="session")
def mpi(communicator):
    with threadpool_limits(1):  # the ranks occupy all cores
        yield Mpi(communicator)


@cache
def by_one_rank(dtype):
    from contract import training  # late, so that pytest rewrites its asserts

    return training.by_one_rank(dtype)


@pytest.fixture(scope="session")
def difference(mpi):
    """Return a function: the largest difference from training on rank 0 with the whole batch. Collective."""

    @cache
    def expected(dtype):
        parameters = by_one_rank(dtype) if mpi.comm.rank == 0 else None
        mpi.comm.sleeping_barrier()
        return mpi.comm.library.bcast(parameters)

    return lambda parameters, dtype: np.abs(parameters - expected(dtype)).max()


@pytest.fixture
def as_in_process(mpi):
    """Return a function: this rank's results of a program over MPI and in one process, of equal messages and bytes.

    Those of a ``native`` program may differ.
    """

    def run(program, *, native=False):
        rank, world = mpi.comm.rank, in_process(mpi.comm.size)
        expected = world.run(program)[rank]
        before = mpi.counters()
        found = mpi.run(program(mpi.comm))
        after = mpi.counters()
        if not native:
            sent = after.messages - before.messages, after.bytes - before.bytes
            assert sent == (world.messages[rank], world.bytes[rank])
        return found, expected

    return run


@pytest.fixture
def fabric(mpi):
    return OverMpi(mpi)


@pytest.fixture
def group(mpi):
    if mpi.comm.size == 1:
        pytest.skip("needs two ranks")
    return OverMpi(mpi)
