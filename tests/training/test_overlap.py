"""Overlap of messages with the gradient: in virtual time the overlapped messages add nothing."""

from contract.tiny import tiny_session

from hpcdl.fabric.network import NETWORKS
from hpcdl.fabric.virtual.simulated import simulated
from hpcdl.training.ad_psgd import ad_psgd
from hpcdl.training.elastic_averaging import elastic_averaging
from hpcdl.training.parameter_servers import asynchronous, downpour

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
    ]:
        messages = duration(strategy, 0.0, settings)
        assert messages > STEPS * GRADIENT / 3
        assert duration(strategy, GRADIENT, settings) < STEPS * GRADIENT + messages / 4


def test_without_overlap_a_worker_waits_for_its_fetch():
    settings = {"dedicated": True}
    messages = duration(asynchronous, 0.0, settings)
    assert duration(asynchronous, GRADIENT, settings) > STEPS * GRADIENT + 0.9 * messages
