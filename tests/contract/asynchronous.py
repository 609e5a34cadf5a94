"""Training with servers of all ranks in this process, with its traces."""

from functools import cache, partial

import numpy as np

from contract import quadratic
from hpcdl import registry
from hpcdl.data.parts.sharding import EQUAL
from hpcdl.fabric.faults import RankFailed
from hpcdl.trace.recorder import Recorder
from hpcdl.training.parts.traits import Strategy


def chosen(ranks, numbers):
    """Return the strategy of a table as in a suite, by default ``asynchronous``. ValueError for wrong settings."""
    settings = {"name": "asynchronous", **numbers}
    name = settings.pop("name")
    strategy = registry.find("training", name)
    registry.check_settings(strategy, settings)
    registry.traits("training", name, Strategy).check_settings(ranks, registry.in_full(strategy, settings))
    return partial(strategy, **settings)


def title(ranks, numbers):
    """Return the literature's name of the strategy of a table."""
    strategy = chosen(ranks, numbers)
    traits = registry.traits("training", strategy.func.__name__, Strategy)
    return traits.title(ranks, registry.in_full(strategy.func, strategy.keywords))


def may_fail(failure, rank):
    """Return session settings of a rank that fails before a step if ``failure`` is (rank, step)."""

    def before_step(step):
        if (rank, step) == failure:
            raise RankFailed

    return {"before_step": before_step} if failure else {}


class Failing:
    """A communicator whose rank fails when it begins its message number ``lasts`` + 1."""

    def __init__(self, comm, lasts):
        self.comm, self.lasts = comm, lasts

    def __getattr__(self, name):
        return getattr(self.comm, name)

    def _count(self):
        if self.lasts == 0:
            raise RankFailed
        self.lasts -= 1

    async def send(self, *arguments):
        self._count()
        await self.comm.send(*arguments)

    async def recv(self, *arguments):
        self._count()
        return await self.comm.recv(*arguments)


def common(sessions):
    """Return the parameters, which must be equal on all ranks."""
    first, *others = (session.replica.parameters for session in sessions)
    assert all(np.array_equal(first, other) for other in others)
    return first


class Run:
    """Training by the strategy of the table ``numbers``, or by ``strategy``."""

    def __init__(self, world, make=quadratic.session, strategy=None, failure=None, numbers=None, **settings):
        strategy = strategy or chosen(world.ranks, numbers or {})
        self.recorders = [Recorder(events=False) for _ in range(world.ranks)]
        self.sessions = [
            make(recorder=recorder, **may_fail(failure, rank), **settings)
            for rank, recorder in enumerate(self.recorders)
        ]
        world.run(lambda comm: strategy(comm, self.sessions[comm.rank]))
        assert not [post for group in world.groups for box in group.mailboxes() for post in box.posts()]

    @property
    def parameters(self):
        return common(self.sessions)

    def updates(self, rank=0):
        return self.recorders[rank].updates

    @property
    def images(self):
        return sum(row.images for recorder in self.recorders for row in recorder.steps)


@cache
def batch_gradient(size, global_batch, clock, worker, workers, shares=EQUAL):
    """Return the number of images of a worker's share of one batch, and their sum."""
    images, _ = quadratic.session(size=size, global_batch=global_batch, shares=shares).inputs.batch(
        clock, worker, workers
    )
    return len(images), images.reshape(len(images), -1).sum(axis=0)


def loss_of(parameters):
    """Return the loss of the five test images."""
    images, _ = quadratic.images(5).test.batch(np.arange(5), "float64")
    return ((parameters - images.reshape(5, -1)) ** 2).sum() / 2 / 5
