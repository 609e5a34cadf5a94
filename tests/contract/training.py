"""A small training of several tests: LeNet-5 on the digits, with momentum, decay and a falling rate."""

from functools import cache

import numpy as np
import pytest

from contract import networks
from contract.sessions import SEED, silent_journal, training_session
from hpcdl import registry
from hpcdl.fabric.virtual.clocks import in_process
from hpcdl.nn.backend import backend
from hpcdl.nn.layers import BatchNorm, Flatten, Linear
from hpcdl.nn.replica import Replica
from hpcdl.optim.parts.schedules import schedule
from hpcdl.optim.sgd import SGD

STEPS = 12
"""An epoch of the digits (11 batches) and one step."""
GLOBAL_BATCH = 120
"""Divisible by 1, 2, 3, 4, 5 and 8."""
LEARNING_RATE = 0.05

TOLERANCE = {"float64": 1e-10, "float32": 1e-4}
"""Largest difference of parameters after STEPS steps if gradients are summed in another order."""


@cache
def digits():
    return registry.find("datasets", "digits")()


def normalised():
    """Return a replica with running statistics, for the digits."""
    layers = [BatchNorm("norm"), Flatten("flatten"), Linear("fc", 10)]
    return Replica(layers, (8, 8, 1), backend=backend("numpy"), dtype="float64", seed=1)


def learning_rate(step):
    return LEARNING_RATE * schedule("polynomial", power=0.5)(step, STEPS)


def session(aggregation, dtype, recorder=None, *, allocate=None, **settings):
    """Return one rank's session of the training."""
    dataset = digits()
    layers = registry.find("models", "lenet5")(dataset.shape, dataset.classes)
    defaults = {
        "replica": Replica(
            layers, dataset.shape, backend=backend("numpy"), dtype=dtype, seed=SEED, allocate=allocate
        ),
        "optimizer": SGD(momentum=0.9, weight_decay=2e-4),
        "aggregate": registry.find("aggregation", aggregation),
        "dataset": dataset,
        "journal": silent_journal(recorder),
        "learning_rate": learning_rate,
        "global_batch": GLOBAL_BATCH,
        "steps": STEPS,
    }
    return training_session(**defaults | settings)


def train(strategy, ranks, aggregation, dtype, *, seed=0, recorders=None, bucket_bytes=None, **settings):
    """Return the parameters of all ranks."""

    async def program(comm):
        mine = session(aggregation, dtype, recorders and recorders[comm.rank], **settings)
        await strategy(comm, mine, bucket_bytes=bucket_bytes)
        return mine.replica.parameters

    return in_process(ranks, seed).run(program)


@cache
def by_one_rank(dtype):
    """Return the parameters after STEPS steps with the whole batch, by a plain loop without fabric and strategy."""
    mine = session("none", dtype)
    replica = mine.replica
    for step in range(STEPS):
        networks.step(replica, *mine.inputs.batch(step, 0, 1), 1 / GLOBAL_BATCH)
        mine.optimizer.update(replica.parameters, replica.gradients, learning_rate(step))
    return replica.parameters


def check_journals(alone, recorders):
    """Check that the journals of all ranks add up to that of one rank, and that all have its evaluations.

    Images and correct answers are summed over ranks; losses are averaged with the images as weights.
    """
    for expected, *mine in zip(alone.steps, *(recorder.steps for recorder in recorders), strict=True):
        assert expected.images == sum(row.images for row in mine)
        assert expected.correct == sum(row.correct for row in mine)
        assert expected.loss == pytest.approx(sum(row.loss * row.images for row in mine) / expected.images)
        same = [(row.step, row.epoch, row.learning_rate) for row in (expected, *mine)]
        assert len(set(same)) == 1
    for one, *rows in zip(alone.evaluations, *(recorder.evaluations for recorder in recorders), strict=True):
        assert len(set(rows)) == 1
        assert rows[0][:2] == one[:2]
        assert (rows[0].loss, rows[0].accuracy) == pytest.approx((one.loss, one.accuracy))


def difference(parameters, dtype):
    """Return the largest difference from the parameters of one rank with the whole batch."""
    return np.abs(parameters - by_one_rank(dtype)).max()
