"""Layer-wise exchange is synchronous training: the same numbers, each layer's as soon as it can be."""

import inspect
from functools import partial

import numpy as np
import pytest
from contract.training import TOLERANCE, by_one_rank, difference, session

from hpcdl import registry
from hpcdl.aggregation.halving_doubling import halving_doubling
from hpcdl.analysis.compute_times import DEVICES, at_rate
from hpcdl.data.sharding import Shares
from hpcdl.fabric.inprocess import in_process
from hpcdl.fabric.network import NETWORKS
from hpcdl.fabric.simulated import simulated
from hpcdl.predicted_steps import Training, step_seconds
from hpcdl.trace.recorder import Recorder
from hpcdl.training.layerwise import layerwise
from hpcdl.training.synchronous import synchronous


def train(ranks, aggregation, dtype, *, seed=0, recorders=None, bucket_bytes=None, **settings):
    """Everybody's parameters."""

    async def program(comm):
        mine = session(aggregation, dtype, recorders and recorders[comm.rank], **settings)
        await layerwise(comm, mine, bucket_bytes=bucket_bytes)
        return mine.replica.parameters

    return in_process(ranks, seed).run(program)


@pytest.mark.parametrize("ranks", [2, 3])
def test_so_it_does_with_unequal_shares(ranks):
    for parameters in train(ranks, "ring", "float64", shares=Shares(weights=(5, 1))):
        assert difference(parameters, "float64") < TOLERANCE["float64"]


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("aggregation", ["ring", "halving_doubling", "tree", "two_shot"])
def test_equals_one_rank_with_the_whole_batch(aggregation, ranks):
    first, *others = train(ranks, aggregation, "float64")
    assert difference(first, "float64") < TOLERANCE["float64"]
    assert all(np.array_equal(first, other) for other in others)


def test_one_rank_does_what_the_plain_loop_does():
    assert np.array_equal(*train(1, "ring", "float32"), by_one_rank("float32"))


@pytest.mark.parametrize("bucket_bytes", [2000, 30_000, 100_000])
@pytest.mark.parametrize("ranks", [2, 3])
def test_pieces_and_their_order_change_nothing(ranks, bucket_bytes):
    for rank in train(ranks, "butterfly", "float64", bucket_bytes=bucket_bytes):
        assert difference(rank, "float64") < TOLERANCE["float64"]


@pytest.mark.parametrize("bucket_bytes", [None, 20_000])
@pytest.mark.parametrize("seed", range(5))
def test_whoever_is_faster(seed, bucket_bytes):
    """Any order in which ranks and programs take turns gives the same bits.

    Also where pieces have an order that depends on who is how far when backward ends.
    """
    expected = train(3, "halving_doubling", "float32", seed=100)
    found = train(3, "halving_doubling", "float32", seed=seed, bucket_bytes=bucket_bytes)
    if bucket_bytes is None:
        for rank, wanted in zip(found, expected, strict=True):
            assert np.array_equal(rank, wanted)
    else:  # pieces are cut elsewhere, so sums are made in another order
        assert all(np.array_equal(rank, found[0]) for rank in found)
        assert np.allclose(found[0], expected[0], rtol=1e-4, atol=1e-6)


def test_evaluations_see_all_updates():
    """Also those in the middle, although the exchange of the step before is still under way then."""

    def accuracies(strategy):
        recorders = [Recorder(events=False) for _ in range(2)]

        async def program(comm):
            await strategy(comm, session("ring", "float64", recorders[comm.rank], evaluate_every=0.5))

        in_process(2).run(program)
        return [(row.step, round(row.loss, 9), row.accuracy) for row in recorders[0].evaluations]

    found = accuracies(layerwise)
    assert found == accuracies(synchronous)
    assert len(found) > 2


def test_exchanges_lie_beside_the_next_forward():
    """In virtual time, on a slow network, with layers that take a while: shorter than synchronous training."""

    def duration(strategy):
        events = [[], []]

        async def program(comm):
            await strategy(comm, session("ring", "float32", steps=10))

        seconds = lambda _rank, label: 0.0005 if label.startswith(("forward", "backward")) else 0.0
        simulated(2, NETWORKS["ethernet-1g"], compute=seconds, events=events).run(program)
        return max(end for rank in events for _, _, _, end, *_ in rank)

    assert duration(layerwise) < 0.9 * duration(synchronous)


@pytest.mark.parametrize(
    ("model", "network", "images"), [("googlenet", "ethernet-1g", 32), ("vgg16", "ethernet-10g", 4)]
)
def test_the_first_layers_overtake_the_others(model, network, images):
    """Where exchanging outlasts backward, the next forward begins the earlier."""
    published = registry.find("models", model)
    shape, classes = (given.default for given in list(inspect.signature(published).parameters.values())[:2])
    layers = published(shape, classes)
    times = at_rate(layers, shape, DEVICES["k20"].flops)

    def seconds(strategy):
        training = Training(strategy, halving_doubling, layers, shape, "float32")
        return step_seconds(training, 8, images, NETWORKS[network], times)

    whole = seconds(partial(layerwise, bucket_bytes=0))
    assert seconds(layerwise) < 0.97 * whole
    assert whole < seconds(synchronous)
