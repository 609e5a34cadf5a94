"""The fabric under test without MPI: seeded interleavings of one process, and a simulation."""

import pytest

from hpcdl.fabric.inprocess import in_process
from hpcdl.fabric.network import NETWORKS
from hpcdl.fabric.simulated import simulated

pytest.register_assert_rewrite("contract")


class OneProcess:
    """All ranks are here."""

    def __init__(self, world):
        self.ranks = world.ranks
        self.run = world.run

    @staticmethod
    def local(values):
        """Of a list with one value per rank, those of the ranks in this process."""
        return values


@pytest.fixture(params=["seed 0", "seed 1", "seed 2", "simulated"])
def world_of(request):
    """Makes a world of so many ranks."""
    if request.param == "simulated":
        return lambda ranks: simulated(ranks, NETWORKS["ethernet-10g"])
    return lambda ranks: in_process(ranks, int(request.param.split()[1]))


@pytest.fixture(params=[1, 2, 3, 4, 5, 8])
def fabric(request, world_of):
    return OneProcess(world_of(request.param))


@pytest.fixture(params=[2, 3, 4, 5, 8])
def group(request, world_of):
    return OneProcess(world_of(request.param))
