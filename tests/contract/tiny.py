"""A training so small that a thousand of it take seconds: one linear layer on noise, 15 parameters."""

from functools import cache

import numpy as np

from hpcdl.aggregation.ring import ring
from hpcdl.data.in_memory import in_memory_dataset
from hpcdl.fabric.comm import Gauge
from hpcdl.nn.backend import backend
from hpcdl.nn.layers.flatten import Flatten
from hpcdl.nn.layers.linear import Linear
from hpcdl.nn.replica import Replica
from hpcdl.optim.sgd import SGD
from hpcdl.trace.recorder import Recorder
from hpcdl.training.journal import Journal
from hpcdl.training.session import Session

RATE = 0.05

PARAMETERS = 15


@cache
def noise():
    random = np.random.default_rng(0)

    def split(images):
        return random.integers(0, 256, (images, 2, 2, 1)).astype(np.uint8), random.integers(0, 3, images)

    return in_memory_dataset("noise", split(96), split(4), classes=3, source="")


def tiny_replica():
    replica = Replica([Flatten("flatten"), Linear("fc", 3)], (2, 2, 1), backend=backend("numpy"), dtype="float64")
    assert replica.parameters.size == PARAMETERS
    return replica


def tiny_session(recorder=None, *, start=None, **settings):
    """One rank's side; ``start`` replaces the parameters."""
    defaults = {
        "optimizer": SGD(),
        "aggregate": ring,
        "dataset": noise(),
        "journal": Journal(recorder or Recorder(events=False), lambda: Gauge(0, 0, 0, 0, 0)),
        "learning_rate": lambda _step: RATE,
        "global_batch": 48,
        "steps": 3,
        "seed": 3,
        "evaluate_every": 1000,  # so once, at the end
    }
    mine = Session(**{"replica": settings.get("replica") or tiny_replica()} | defaults | settings)
    if start is not None:
        mine.replica.parameters[:] = start
    return mine


def starts(ranks, seed=0):
    """Other parameters for each rank."""
    return np.random.default_rng(seed).normal(size=(ranks, PARAMETERS))


@cache
def replicas(ranks):
    """The same ones at each call, since to make one takes longer than to train it: for schedules by the thousand."""
    return [tiny_replica() for _ in range(ranks)]
