"""A network without layers whose gradients cost microseconds: w - x for each image x, so the loss is a bowl."""

from functools import cache

import numpy as np

from hpcdl.data.in_memory import in_memory_dataset
from hpcdl.fabric.comm import Gauge
from hpcdl.nn.backend import backend
from hpcdl.optim.sgd import SGD
from hpcdl.trace.recorder import Recorder
from hpcdl.training.journal import Journal
from hpcdl.training.session import Session

IMAGES = 48
RATE = 0.125


@cache
def noise(size):
    """Images of ``size`` numbers, 48 to train on and 5 to test."""
    random = np.random.default_rng(size)
    train, test = (
        (random.integers(0, 256, (n, size, 1, 1)).astype(np.uint8), np.zeros(n, np.int64)) for n in (IMAGES, 5)
    )
    return in_memory_dataset("noise", train, test, classes=1, source="")


class Bowl:
    """What a strategy needs of a replica."""

    def __init__(self, size, dtype):
        self.backend = backend("numpy")
        self.dtype = dtype
        self.loss_scale = 1.0
        self.parameters = np.linspace(-1, 1, size).astype(dtype)
        self.gradients = np.zeros(size, dtype)
        self.state = np.zeros(0, dtype)
        self.stages = ()

    def reseed(self, *key):
        pass

    def predict(self, images):
        return images

    def let_go(self):
        pass

    def loss(self, images, labels, scale, train=True):
        distance = self.parameters - images.reshape(len(images), -1)
        if train:
            self.gradients[:] = scale * distance.sum(axis=0)
        return float((distance**2).sum()) / 2, 0, None


def session(size=5, dtype="float64", recorder=None, before_step=lambda step: None, **settings):
    """One rank's side of descending into the bowl."""
    journal = Journal(recorder or Recorder(events=False), lambda: Gauge(0, 0, 0, 0, 0), before_step)
    defaults = {
        "replica": Bowl(size, dtype),
        "optimizer": SGD(),
        "aggregate": None,
        "dataset": noise(size),
        "journal": journal,
        "learning_rate": lambda step: RATE / (1 + step),
        "global_batch": IMAGES,
        "steps": 6,
        "seed": 3,
        "evaluate_every": 1000,  # so once, at the end
    }
    return Session(**defaults | settings)
