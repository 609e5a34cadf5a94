"""A network of round numbers, and the virtual time of a program on it."""

import pytest

from hpcdl.fabric.network import Link, Network
from hpcdl.fabric.vectors import phantom
from hpcdl.fabric.virtual.clocks import simulated

ALPHA, BETA, GAMMA = 1e-3, 1e-6, 1e-7
NETWORK = Network(
    "by hand", Link(ALPHA, BETA), source="none", gamma=GAMMA, inside=Link(alpha=ALPHA / 10, beta=BETA / 100)
)
SIZE = 4000
MESSAGE = ALPHA + SIZE * BETA


def buffer(size=SIZE):
    return phantom(size // 4)


def seconds(ranks, program, network=NETWORK, **options):
    """How long ``program`` takes on ``ranks`` ranks."""
    world = simulated(ranks, network, **{"compute": lambda _rank, _label: 0.0, **options})
    world.run(program)
    return world.now


def ring_seconds(network, ranks, size):
    """How long a ring takes for vectors of ``size`` bytes: 2 (p - 1) messages of a p-th, half of them reduced."""
    link, part = network.link, size / ranks
    return (ranks - 1) * (2 * (link.alpha + part * link.beta) + part * network.gamma)


def close(value):
    return pytest.approx(value, rel=1e-12)
