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
from hpcdl.fabric.virtual.clocks import simulated
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


@pytest.mark.slow
@pytest.mark.parametrize("name", list(STRATEGIES))
def test_every_schedule_ends_with_the_same_parameters(name):
    """After four steps, with an evaluation after each."""
    keys = {"steps": 4, "evaluate_every": 0.5, "aggregate": ring if "zero" in name else binomial}

    @cache
    def scheduled(ranks, seed):
        own, pool = starts(1).repeat(ranks, axis=0), replicas(16)
        return tiny.parameters(tiny.train(STRATEGIES[name], ranks, seed=seed, own=own, pool=pool, keys=keys))

    for seed in SCHEDULES[::2]:
        ranks = ranks_in(seed)
        found = scheduled(ranks, seed)
        np.testing.assert_allclose(found, scheduled(ranks, 10_000), rtol=0, atol=1e-13)
        assert np.abs(found - starts(1)).max() > 1e-3


STEPS = 50
GRADIENT = 8e-5


def duration(strategy, gradient, settings):
    """Return the virtual seconds of a training by two ranks."""
    seconds = lambda _rank, label: gradient / 4 if label.startswith(("forward", "backward")) else 0.0  # two layers
    world = simulated(2, NETWORKS["ethernet-10g"], compute=seconds)
    world.run(lambda comm: strategy(comm, tiny_session(steps=STEPS), **settings))
    return world.now


def test_messages_add_no_time_to_a_longer_gradient_only_if_they_overlap():
    for strategy, settings, overlap in [
        (downpour, {"dedicated": True, "overlap": True}, True),
        (downpour, {"dedicated": True, "n_fetch": STEPS}, True),
        (elastic_averaging, {"dedicated": True, "period": 1}, True),
        (ad_psgd, {}, True),
        (d_psgd, {"mixing": "overlap"}, True),
        (update_broadcast, {}, True),
        (asynchronous, {"dedicated": True}, False),
        (d_psgd, {"mixing": "after"}, False),
    ]:
        messages = duration(strategy, 0.0, settings)
        assert messages > STEPS * GRADIENT / 6
        added = duration(strategy, GRADIENT, settings) - STEPS * GRADIENT
        assert added < messages / 4 if overlap else added > 0.9 * messages


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
