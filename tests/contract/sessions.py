"""Session of one rank from flat settings."""

from functools import cache

import numpy as np

from hpcdl.data.parts.splits import in_memory_dataset
from hpcdl.fabric.comm import Counters
from hpcdl.trace.recorder import Recorder
from hpcdl.training.parts.inputs import Inputs
from hpcdl.training.parts.journal import Journal
from hpcdl.training.parts.session import Evaluation, Session

SEED = 3
EVALUATION = {"evaluate_every": "every", "target_accuracy": "target_accuracy", "stop_at_target": "stop_at_target"}


@cache
def noise(shape, train, test, classes, seed=0):
    """Return a dataset of random images, with so many for training and for tests."""
    random = np.random.default_rng(seed)
    splits = [
        (random.integers(0, 256, (n, *shape)).astype(np.uint8), random.integers(0, classes, n))
        for n in (train, test)
    ]
    return in_memory_dataset("noise", *splits, classes=classes, source="")


def silent_journal(recorder=None, *options):
    """Return a journal whose counters stand still."""
    return Journal(recorder or Recorder(events=False), lambda: Counters(0, 0, 0, 0, 0), *options)


def training_session(
    *, replica, optimizer, aggregate, dataset, journal, learning_rate, global_batch, steps, seed=SEED, **settings
):
    """Return a session that trains on ``dataset``, by default evaluated only at the end.

    See :class:`Inputs`, :class:`Evaluation`, :class:`Session`.
    """
    taken = {name: settings.pop(name) for name in ("shares", "partition", "prefetch") if name in settings}
    group = settings.get("group")
    inputs = Inputs(replica, dataset, global_batch, steps, seed, group=group, **taken)
    kept = {"every": 1000} | {own: settings.pop(name) for name, own in EVALUATION.items() if name in settings}
    evaluation = Evaluation(inputs, journal, independent=settings.get("independent", False), **kept)
    return Session(replica, optimizer, aggregate, inputs, evaluation, learning_rate, **settings)
