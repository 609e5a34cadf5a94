"""Gradient noise scale: that of a training at rate 0 is the one of all single gradients."""

import numpy as np
import pytest
from contract.sessions import silent_journal

from hpcdl.cases.keys.key import restored
from hpcdl.cases.keys.train_spec import TrainSpec
from hpcdl.cases.train import program
from hpcdl.data.digits import digits
from hpcdl.fabric.virtual.inprocess import in_process

CASE = {"model": "lenet5", "dataset": "digits", "learning_rate": 0.0, "ranks": 4, "global_batch": 64, "epochs": 8}


def run(**keys):
    """Return the record and the specification of a case at rate 0."""
    spec = restored(TrainSpec, CASE | keys)

    async def train(comm):
        return await program(spec, silent_journal())(comm)

    return in_process(spec.ranks).run(train)[0], spec


@pytest.mark.slow
def test_it_is_the_trace_of_the_covariance_by_the_squared_gradient():
    found, spec = run()
    replica = spec.replica(spec.kernels)
    whole = digits().train
    mean, squares = np.zeros(replica.gradients.size), 0.0
    for index in range(len(whole)):
        images, labels = whole.batch(np.array([index]), "float32")
        x = images
        for stage in replica.stages:
            x = stage.forward(x, train=True)
        _, _, dx = replica.loss(x, labels, 1.0)
        for stage in reversed(replica.stages):
            dx = stage.backward(dx)
        mean += replica.gradients
        squares += float(replica.gradients @ replica.gradients)
    mean /= len(whole)
    true = float(mean @ mean)
    expected = (squares / len(whole) - true) / true
    quarters = [found[f"noise_scale_q{quarter}"] for quarter in range(1, 5)]
    assert np.mean(quarters) == pytest.approx(expected, rel=0.1)


def test_buckets_do_not_change_the_estimate():
    keys = {"ranks": 3, "global_batch": 60, "epochs": 1}
    strategies = ({"name": "synchronous", "bucket_bytes": size} for size in (0, 4096))
    whole, parts = (run(training=strategy, **keys)[0]["noise_scale_q1"] for strategy in strategies)
    assert parts == pytest.approx(whole, rel=1e-4)


def test_where_a_rank_does_not_know_both_gradients_there_is_none():
    for keys in ({"aggregation": "none"}, {"compression": "fp16"}, {"mesh": {"model": 2}}):
        assert not any(name.startswith("noise") for name in run(ranks=2, epochs=1, **keys)[0])
