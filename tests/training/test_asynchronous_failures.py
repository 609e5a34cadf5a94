"""Asynchronous training goes on after the failure of a worker, and ends after that of a server."""

import numpy as np
import pytest
from contract.asynchronous import Run, chosen

from hpcdl.fabric.comm import PeerLost
from hpcdl.fabric.faults import RankFailed
from hpcdl.fabric.virtual.inprocess import in_process


class Failing:
    """A communicator whose rank fails when it begins its message number ``lasts`` + 1."""

    def __init__(self, comm, lasts):
        self.comm, self.lasts = comm, lasts

    def __getattr__(self, name):
        return getattr(self.comm, name)

    def _count(self):
        if self.lasts == 0:
            raise RankFailed
        self.lasts -= 1

    async def send(self, *arguments):
        self._count()
        await self.comm.send(*arguments)

    async def recv(self, *arguments):
        self._count()
        return await self.comm.recv(*arguments)


@pytest.mark.slow
@pytest.mark.parametrize(
    "numbers",
    [
        {},
        {"name": "ssp", "bound": 0},
        {"name": "ssp", "collect": "all", "bound": 0},
        {"name": "downpour", "n_push": 2, "n_fetch": 2},
        {"name": "downpour", "overlap": True},
        {"name": "downpour", "warm_start": 5},
    ],
    ids=str,
)
@pytest.mark.parametrize("servers", [2, 3])
def test_a_worker_fails_between_messages_to_two_servers(numbers, servers):
    """No rank waits forever, and the servers' updates differ at most by the gradient under way."""
    workers, steps, partial_pushes = 3, 4, 0
    for seed in range(40):
        strategy = chosen(workers + servers, {"servers": servers, "dedicated": True, **numbers})

        async def train(comm, session, lasts=seed, strategy=strategy):
            await strategy(Failing(comm, lasts) if comm.rank == 0 else comm, session)

        run = Run(in_process(workers + servers, seed), strategy=train, steps=steps, size=7)
        updates = [run.updates(server) for server in range(workers, workers + servers)]
        pushes = [sum(one.worker == 0 for one in found) for found in updates]
        assert max(pushes) - min(pushes) <= 1
        partial_pushes += max(pushes) > min(pushes)
        if numbers.get("n_push", 1) == 1:
            assert len(updates[0]) == steps * workers
        survivors = [session.replica.parameters for session in run.sessions[1:]]
        assert all(np.array_equal(survivors[0], other) for other in survivors)
    assert partial_pushes


def test_training_ends_if_a_server_fails():
    with pytest.raises(PeerLost, match=r"^rank 2 is gone: it kept a part of the parameters$"):
        Run(in_process(3), failure=(2, 1), numbers={"name": "downpour", "servers": 3})
