"""Layerwise training: results of synchronous training, with more overlap."""

from functools import partial

import numpy as np
import pytest
from contract import training
from contract.cases import case_of
from contract.training import difference, session

from hpcdl import registry
from hpcdl.cases.simulation.step_simulation import Conditions, virtual_step
from hpcdl.fabric.network import NETWORKS
from hpcdl.fabric.virtual.inprocess import in_process
from hpcdl.optim.parts.protocol import LossScaling
from hpcdl.optim.sgd import SGD
from hpcdl.training.layerwise import layerwise
from hpcdl.training.parts.bucketing import bucket_bytes as fitted_bucket_bytes
from hpcdl.training.synchronous import synchronous

train = partial(training.train, layerwise)


@pytest.mark.parametrize("bucket_bytes", [0, 20_000])
@pytest.mark.parametrize("aggregation", ["binomial", "chain", "parameter_server", "tree"])
@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_a_server_that_updates_layers_is_synchronous_training(ranks, aggregation, bucket_bytes):
    """In every schedule; only rank 0 has velocities."""
    settings = {"chain": {"segment_bytes": 4096}, "tree": {"arity": 3}}.get(aggregation, {})
    scheme = partial(registry.find("aggregation", aggregation), **settings)
    for seed in range(2):

        async def program(comm):
            mine = session("ring", "float64", aggregate=scheme, evaluate_every=0.5)
            await layerwise(comm, mine, bucket_bytes=bucket_bytes, updates="server")
            return mine.replica.parameters, mine.memory_bytes

        (first, memory), *others = in_process(ranks, seed).run(program)
        assert difference(first, "float64") < 1e-12
        assert all(np.array_equal(first, other) for other, _ in others)
        assert (memory, *(other for _, other in others)) == (3 * first.nbytes, *[2 * first.nbytes] * (ranks - 1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "network", "images"), [("googlenet", "ethernet-1g", 32), ("vgg16", "ethernet-10g", 4)]
)
def test_priority_of_the_first_layers_shortens_a_step(model, network, images):
    """If the exchange takes longer than backward, the next forward begins earlier."""

    def seconds(strategy, **settings):
        keys = {"model": model, "training": {"name": strategy, **settings}, "aggregation": "halving_doubling"}
        keys |= {"ranks": 8, "batch_per_rank": images, "network": network, "flops": 0.428e12}
        spec, link = case_of("replay", **keys).spec, NETWORKS[network].link
        bucket = fitted_bucket_bytes(link.alpha, link.beta, 8)
        return virtual_step(spec, Conditions(spec.cluster, spec.compute_times, images, bucket)).seconds

    whole = seconds("layerwise", bucket_bytes=0)
    assert seconds("layerwise") < 0.97 * whole
    assert whole < seconds("synchronous")


class Overflow:
    """A loss scale with which the gradients of one layer overflow at some steps, as in float16."""

    def __init__(self, replica, stage, steps, first):
        self.scales = []
        self._stage, self._steps = stage, steps
        self._backward = stage.backward
        self.replica = replica
        stage.backward = self.backward
        self.optimizer = LossScaling(SGD(momentum=0.9), replica, scale=first, growth_interval=2)

    def backward(self, dy, *, first):
        self.scales.append(self.replica.loss_scale)
        dx = self._backward(dy, first=first)
        if len(self.scales) - 1 in self._steps:
            self.replica.gradients[self._stage.span] = np.inf
        return dx


def scaled(strategy, overflows, first=2.0**20):
    """Return the parameters and each step's scale; the gradient of conv2 overflows at the given steps."""

    async def program(comm):
        mine = session("ring", "float64", optimizer=SGD(), steps=6)
        stages = {stage.name: stage for stage in mine.replica.stages}
        overflow = Overflow(mine.replica, stages["conv2"], overflows, first)
        mine = session("ring", "float64", optimizer=overflow.optimizer, replica=mine.replica, steps=6)
        await strategy(comm, mine)
        return mine.replica.parameters, overflow.scales, stages["conv2"].span

    return in_process(2).run(program)[0]


def test_with_a_loss_scale_it_equals_synchronous_training():
    """The scale doubles after every two steps, for all layers at once."""
    found, scales, _ = scaled(layerwise, [])
    expected, wanted, _ = scaled(synchronous, [])
    assert scales == wanted == [2.0 ** (20 + step // 2) for step in range(6)]
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_an_overflow_halves_the_scale_once_and_skips_only_its_layer():
    found, scales, conv2 = scaled(layerwise, [0])
    _, wanted, _ = scaled(synchronous, [0])
    assert scales == wanted == [2.0 ** (20 + power) for power in (0, -1, -1, 0, 0, 1)]
    assert np.isfinite(found).all()
    start = session("ring", "float64").replica.parameters
    after_one, _, _ = scaled(layerwise, range(6))
    assert np.array_equal(after_one[conv2], start[conv2])
    assert not np.array_equal(after_one, start)
