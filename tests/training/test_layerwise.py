"""Layer-wise exchange is synchronous training: the same numbers, each layer's as soon as it can be."""

import numpy as np
import pytest
from contract.aggregations import SCHEMES
from contract.training import TOLERANCE, by_one_rank, difference, session

from hpcdl.fabric.inprocess import in_process
from hpcdl.fabric.network import NETWORKS
from hpcdl.fabric.simulated import simulated
from hpcdl.trace.recorder import Recorder
from hpcdl.training.layerwise import layerwise
from hpcdl.training.synchronous import synchronous


def train(ranks, aggregation, dtype, *, seed=0, recorders=None, **settings):
    """Everybody's parameters."""

    async def program(comm):
        mine = session(aggregation, dtype, recorders and recorders[comm.rank], **settings)
        await layerwise(comm, mine)
        return mine.replica.parameters

    return in_process(ranks, seed).run(program)


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("aggregation", SCHEMES)
def test_equals_one_rank_with_the_whole_batch(aggregation, ranks):
    first, *others = train(ranks, aggregation, "float64")
    assert difference(first, "float64") < TOLERANCE["float64"]
    assert all(np.array_equal(first, other) for other in others)


def test_one_rank_does_what_the_plain_loop_does():
    assert np.array_equal(*train(1, "ring", "float32"), by_one_rank("float32"))


@pytest.mark.parametrize("seed", range(20))
def test_whoever_is_faster(seed):
    """Any order in which ranks and programs take turns gives the same bits."""
    expected = train(3, "halving_doubling", "float32", seed=100)
    for found, wanted in zip(train(3, "halving_doubling", "float32", seed=seed), expected, strict=True):
        assert np.array_equal(found, wanted)


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
