"""Synchronous and layerwise training on p ranks equal training on one rank with the whole batch."""

from functools import partial

import numpy as np
import pytest
from contract import training
from contract.aggregations import SCHEMES
from contract.training import (
    GLOBAL_BATCH,
    STEPS,
    TOLERANCE,
    by_one_rank,
    check_journals,
    difference,
    digits,
    learning_rate,
    session,
)

from hpcdl.data.parts.sharding import Shares
from hpcdl.fabric.network import NETWORKS
from hpcdl.fabric.virtual.inprocess import in_process
from hpcdl.fabric.virtual.simulated import simulated
from hpcdl.trace.recorder import Evaluation, Recorder, Step
from hpcdl.training.layerwise import layerwise
from hpcdl.training.synchronous import synchronous

TWO_BUCKETS = 300_000
"""Bytes: one bucket for the fully connected layers, and one for the convolutions."""

MANY = 20_000
"""Bytes: a layer's gradient, or a part of one."""

RANKS = (3, 2, 4, 5, 8)

LAYERWISE = ("ring", "halving_doubling", "tree", "two_shot", "butterfly")
LAYERWISE_BYTES = (None, 2000, 30_000, 100_000, 2000)


train = partial(training.train, synchronous)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "aggregation", "ranks", "dtype", "bucket_bytes"),
    [(synchronous, name, RANKS[i % 5], "float64", MANY if i % 2 else None) for i, name in enumerate(SCHEMES)]
    + [(synchronous, "ring", p, "float32", TWO_BUCKETS) for p in RANKS]
    + [(synchronous, name, 3, "float32", None) for name in ("halving_doubling", "tree")]
    + [(layerwise, name, RANKS[i], "float64", LAYERWISE_BYTES[i]) for i, name in enumerate(LAYERWISE)],
)
def test_equals_one_rank_with_the_whole_batch(strategy, aggregation, dtype, bucket_bytes, ranks):
    first, *others = training.train(strategy, ranks, aggregation, dtype, bucket_bytes=bucket_bytes)
    assert difference(first, dtype) < TOLERANCE[dtype]
    assert all(np.array_equal(first, other) for other in others)


def test_one_rank_equals_the_plain_loop():
    for aggregation in ("ring", "none"):
        assert np.array_equal(*train(1, aggregation, "float32"), by_one_rank("float32"))


@pytest.mark.slow
@pytest.mark.parametrize("weights", [(1,), (3, 1), (1, 1, 7)])
@pytest.mark.parametrize("ranks", [2, 7, 9])
def test_equals_one_rank_with_unequal_shares(ranks, weights):
    """The gradient is scaled by the global batch, not by a rank's share."""
    for parameters in train(ranks, "ring", "float64", shares=Shares(weights=weights)):
        assert difference(parameters, "float64") < TOLERANCE["float64"]


def test_a_rank_may_have_no_images():
    settings = {"global_batch": 3, "steps": 2}
    alone, *others = [train(ranks, "ring", "float64", **settings)[0] for ranks in (1, 2, 5)]
    for parameters in others:
        np.testing.assert_allclose(parameters, alone, atol=TOLERANCE["float64"])


def test_the_journals_of_all_ranks_add_up_to_that_of_one_rank():
    (alone,), recorders = ([Recorder(events=False) for _ in range(ranks)] for ranks in (1, 7))
    for those in ([alone], recorders):
        train(len(those), "tree", "float64", recorders=those, evaluate_every=0.5)
    check_journals(alone, recorders)
    rows, evaluations = [Step(*row) for row in alone.steps], [Evaluation(*row) for row in alone.evaluations]
    assert [(row.step, row.epoch, row.images, row.learning_rate) for row in rows] == [
        (step, step // 11, GLOBAL_BATCH, learning_rate(step)) for step in range(STEPS)
    ]  # 1437 images are 11 whole batches
    assert [(row.step, row.epoch, row.samples) for row in evaluations] == [
        (step, step / 11, step * GLOBAL_BATCH) for step in (6, 11, 12)
    ]
    assert rows[0].loss > 1.5 > rows[-1].loss
    assert evaluations[-1].accuracy > 0.8


def backward_and_exchanges(bucket_bytes):
    """Return the end of backward and [(task, begin) of each send] of one step in virtual time."""
    events = [[], []]
    network = NETWORKS["ethernet-10g"]

    async def program(comm):
        mine = session("ring", "float32", steps=1)
        await synchronous(comm, mine, bucket_bytes=bucket_bytes)

    simulated(2, network, compute=lambda *_: 0.1, events=events).run(program)
    done = [end for _, label, _, end, *_ in events[0] if label == "backward conv1"]
    return done[0], [(task, begin) for task, label, begin, *_ in events[0] if label == "send"]


def test_without_buckets_the_exchange_follows_backward():
    done, exchanges = backward_and_exchanges(None)
    assert [task for task, _ in exchanges] == [0, 0]
    assert all(begin >= done for _, begin in exchanges)


def test_a_bucket_is_sent_as_soon_as_it_is_complete():
    """Each stage of backward takes 0.1 s: fc2, fc1, ..., conv1."""
    done, exchanges = backward_and_exchanges(TWO_BUCKETS)
    early = [(task, round((done - begin) / 1e8)) for task, begin in exchanges if begin < done]
    assert {task for task, _ in early} == {1}
    assert early[0] == (1, 5)  # when fc1 is done, flatten, pool2, conv2, pool1 and conv1 are left
    assert [task for task, begin in exchanges if begin >= done] == [0, 0]


@pytest.mark.parametrize(("bucket_bytes", "buckets"), [(None, 1), (TWO_BUCKETS, 2), (100_000, 6), (10**9, 1)])
def test_buckets_together_are_the_gradient(bucket_bytes, buckets):
    """The number of messages is that of the buckets; the bytes are those of the gradient."""
    world = in_process(2)

    async def program(comm):
        mine = session("parameter_server", "float32", steps=1, dataset=digits())
        await synchronous(comm, mine, bucket_bytes=bucket_bytes)
        return mine.replica.gradients.nbytes

    size = world.run(program)[0]
    assert world.messages == [buckets, buckets]
    assert world.bytes == [size, size]
