"""Gradient noise scale: that of a training at rate 0 is the one of all single gradients."""

import numpy as np
import pytest

from hpcdl import suite
from hpcdl.cases.train import program
from hpcdl.data.digits import digits
from hpcdl.fabric.comm import Counters
from hpcdl.fabric.virtual.inprocess import in_process
from hpcdl.trace.recorder import Recorder
from hpcdl.training.parts.journal import Journal

TEXT = """[suite]
name = "s"
[[case]]
kind = "train"
model = "lenet5"
dataset = "digits"
epochs = {epochs}
learning_rate = {rate}
global_batch = {batch}
ranks = {ranks}
training = {training}
{more}
"""


def run(ranks=4, batch=64, rate=0.0, epochs=8, training='"synchronous"', more=""):
    text = TEXT.format(ranks=ranks, batch=batch, rate=rate, epochs=epochs, training=training, more=more)
    (case,) = suite.parse(text, "s.toml").cases

    async def train(comm):
        return await program(case.spec, Journal(Recorder(), lambda: Counters(0, 0, 0, 0, 0)))(comm)

    return in_process(ranks).run(train)[0], case.spec


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
    text = '{{name = "synchronous", bucket_bytes = {}}}'
    whole, parts = (run(3, 60, epochs=1, training=text.format(size))[0]["noise_scale_q1"] for size in (0, 4096))
    assert parts == pytest.approx(whole, rel=1e-4)


def test_where_a_rank_does_not_know_both_gradients_there_is_none():
    for more in ['aggregation = "none"', 'compression = "fp16"', "mesh = {model = 2}"]:
        assert not any(name.startswith("noise") for name in run(2, epochs=1, more=more)[0])
