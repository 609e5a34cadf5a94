"""Asynchronous training of all ranks in this process, with its traces."""

from functools import cache

import numpy as np

from contract import quadratic
from hpcdl.data.parts.sharding import EQUAL
from hpcdl.fabric.faults import RankFailed
from hpcdl.trace.recorder import Recorder, Update
from hpcdl.training.asynchronous import asynchronous


class Run:
    """Asynchronous training of all ranks in this process."""

    def __init__(
        self, world, make=quadratic.session, strategy=asynchronous, failure=None, numbers=None, **settings
    ):
        self.recorders = [Recorder(events=False) for _ in range(world.ranks)]
        self.sessions = [
            make(recorder=recorder, **self._may_fail(failure, rank), **settings)
            for rank, recorder in enumerate(self.recorders)
        ]
        world.run(lambda comm: strategy(comm, self.sessions[comm.rank], **numbers or {}))
        assert not [post for group in world.groups for box in group.mailboxes.values() for post in box.posts()]

    @staticmethod
    def _may_fail(failure, rank):
        """Return session settings of a rank that fails before a step if ``failure`` is (rank, step)."""

        def before_step(step):
            if (rank, step) == failure:
                raise RankFailed

        return {"before_step": before_step} if failure else {}

    @property
    def parameters(self):
        """Parameters, which must be equal on all ranks."""
        first, *others = (session.replica.parameters for session in self.sessions)
        assert all(np.array_equal(first, other) for other in others)
        return first

    def updates(self, rank=0):
        return [Update(*row) for row in self.recorders[rank].updates]

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
    images, _ = quadratic.noise(5).test.batch(np.arange(5), "float64")
    return ((parameters - images.reshape(5, -1)) ** 2).sum() / 2 / 5
