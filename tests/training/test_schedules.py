"""Strategies end with the same parameters in every schedule; overlapped messages add no time."""

from functools import cache, partial

import numpy as np
import pytest
from contract import tiny
from contract.schedules import SCHEDULES, ranks_in
from contract.tiny import replicas, starts, tiny_session

from hpcdl.aggregation.binomial import binomial
from hpcdl.aggregation.ring import ring
from hpcdl.fabric.network import NETWORKS
from hpcdl.fabric.virtual.clocks import in_process, simulated
from hpcdl.trace.recorder import Recorder
from hpcdl.training.ad_psgd import ad_psgd
from hpcdl.training.elastic_averaging import elastic_averaging, synchronous_elastic_averaging
from hpcdl.training.gossip import d_psgd, stochastic_gradient_push
from hpcdl.training.layerwise import layerwise
from hpcdl.training.local_sgd import diloco, parameter_averaging
from hpcdl.training.parameter_servers import asynchronous, downpour
from hpcdl.training.synchronous import synchronous
from hpcdl.training.update_broadcast import update_broadcast
from hpcdl.training.zero import zero

START = starts(1)[0]
BUCKET = 40
"""Bytes of a bucket: a third of the parameters, so that three sums are under way at once."""

STRATEGIES = {
    "synchronous": partial(synchronous, bucket_bytes=BUCKET),
    "layerwise": partial(layerwise, bucket_bytes=BUCKET),
    "parameter_averaging": partial(parameter_averaging, period=2),
    "diloco": partial(diloco, period=3, fragments=3, delay=1),
    "synchronous_elastic_averaging": synchronous_elastic_averaging,
    "d_psgd": partial(d_psgd, mixing="overlap"),
    "d_psgd after": partial(d_psgd, mixing="after", graph="random"),
    "stochastic_gradient_push": partial(stochastic_gradient_push, graph="random"),
    "zero-2": partial(zero, bucket_bytes=BUCKET),
    "zero-3": partial(zero, stage=3),
}


def scheduled(name, ranks, seed):
    """Return the parameters of all ranks after four steps, with an evaluation after each."""

    async def program(comm):
        replica = replicas(16)[comm.rank]
        keys = {"steps": 4, "evaluate_every": 0.5, "aggregate": ring if "zero" in name else binomial}
        await STRATEGIES[name](comm, tiny_session(start=START, replica=replica, **keys))
        return replica.parameters.copy()

    return np.array(in_process(ranks, seed).run(program))


@cache
def in_one_order(name, ranks):
    return scheduled(name, ranks, 10_000)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(STRATEGIES))
def test_every_schedule_ends_with_the_same_parameters(name):
    for seed in SCHEDULES[::2]:
        ranks = ranks_in(seed)
        found = scheduled(name, ranks, seed)
        np.testing.assert_allclose(found, in_one_order(name, ranks), rtol=0, atol=1e-13)
        assert np.abs(found - START).max() > 1e-3


STEPS = 50
GRADIENT = 8e-5


def duration(strategy, gradient, settings):
    """Return the virtual seconds of a training by two ranks."""
    seconds = lambda _rank, label: gradient / 4 if label.startswith(("forward", "backward")) else 0.0  # two layers
    world = simulated(2, NETWORKS["ethernet-10g"], compute=seconds)
    world.run(lambda comm: strategy(comm, tiny_session(steps=STEPS), **settings))
    return world.now


def test_messages_add_no_time_to_a_longer_gradient():
    for strategy, settings in [
        (downpour, {"dedicated": True, "overlap": True}),
        (downpour, {"dedicated": True, "n_fetch": STEPS}),
        (elastic_averaging, {"dedicated": True, "period": 1}),
        (ad_psgd, {}),
        (d_psgd, {"mixing": "overlap"}),
        (update_broadcast, {}),
    ]:
        messages = duration(strategy, 0.0, settings)
        assert messages > STEPS * GRADIENT / 6
        assert duration(strategy, GRADIENT, settings) < STEPS * GRADIENT + messages / 4


def test_without_overlap_messages_add_their_time():
    for strategy, settings in [(asynchronous, {"dedicated": True}), (d_psgd, {"mixing": "after"})]:
        messages = duration(strategy, 0.0, settings)
        assert duration(strategy, GRADIENT, settings) > STEPS * GRADIENT + 0.9 * messages


@pytest.mark.parametrize("strategy", [ad_psgd, update_broadcast])
def test_a_slow_rank_delays_no_other_rank(strategy):
    """One of four ranks is five times slower; the three others make its steps."""
    recorders = [Recorder(events=False) for _ in range(4)]
    world = simulated(4, NETWORKS["ethernet-10g"], compute=lambda rank, _label: 1e-3 * (5 if rank == 3 else 1))
    tiny.train(strategy, 4, world=world, recorders=recorders, keys={"steps": 100})
    made = [len(recorder.steps) for recorder in recorders]
    assert sum(made) == 400
    assert made[3] < 30
    assert min(made[:3]) > 110
