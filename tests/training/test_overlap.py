"""Strategies in virtual time: overlapped messages add nothing, and a slow rank delays no other one."""

import pytest
from contract import tiny
from contract.tiny import tiny_session

from hpcdl.fabric.network import NETWORKS
from hpcdl.fabric.virtual.simulated import simulated
from hpcdl.trace.recorder import Recorder
from hpcdl.training.ad_psgd import ad_psgd
from hpcdl.training.d_psgd import d_psgd
from hpcdl.training.elastic_averaging import elastic_averaging
from hpcdl.training.parameter_servers import asynchronous, downpour
from hpcdl.training.update_broadcast import update_broadcast

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
