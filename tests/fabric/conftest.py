"""The fabric under test without MPI: seeded interleavings of one process, and a simulation."""

import pytest

from hpcdl.fabric.network import NETWORKS
from hpcdl.fabric.virtual.clocks import in_process, simulated


class OneProcess:
    """All ranks are here."""

    def __init__(self, world):
        self.ranks = world.ranks
        self.run = world.run

    @staticmethod
    def local(values):
        """Of a list with one value per rank, those of the ranks in this process."""
        return values


WORLDS = [(1, "simulated"), (2, "seed 0"), (5, "seed 1"), (8, "simulated")]
"""Numbers of ranks and interpreters: each interpreter meets even and odd numbers, each number another schedule."""


def world(ranks, interpreter):
    if interpreter == "simulated":
        return simulated(ranks, NETWORKS["ethernet-10g"], compute=lambda _rank, _label: 0.0)
    return in_process(ranks, int(interpreter.removeprefix("seed ")))


def parameters(worlds):
    return [pytest.param(one, id=f"{one[0]} {one[1]}") for one in worlds]


@pytest.fixture(params=parameters(WORLDS))
def fabric(request):
    return OneProcess(world(*request.param))


@pytest.fixture(params=parameters(WORLDS[1:]))
def group(request):
    return OneProcess(world(*request.param))
