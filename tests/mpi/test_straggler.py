"""A straggler is slow only in its own work, not in answers to other ranks."""

from time import sleep

import numpy as np
import pytest

from hpcdl.fabric.comm import INPUT
from hpcdl.fabric.faults import Delays, Slowed, Straggler
from hpcdl.fabric.modelled_compute import Clock

pytestmark = pytest.mark.mpi(min_size=2)

ECHOES = 10
NO_MORE = -1


def test_a_rank_answers_while_it_pauses(mpi):
    """Each echo follows the previous one, so that at most one could have waited for the pause."""
    answered, during = [], []

    def until_answered(seconds):
        if not seconds:  # the delay of the rank's factor, which is 1
            return
        before = len(answered)
        for _ in range(10_000):
            if len(answered) >= before + ECHOES:
                break
            sleep(0.001)
        during.append(len(answered) - before)

    async def echo(comm):
        word = np.zeros(1)
        while word[0] != NO_MORE:
            await comm.recv(word, 1)
            answered.append(word[0])
            if during:
                word[0] = NO_MORE
            await comm.send(word, 1)

    async def program(comm):
        if comm.rank == 0:
            slow = Slowed(
                comm, Delays(Straggler(rank=0, probability=1, seconds=1), 0, 1), Clock(sleep=until_answered)
            )
            server = slow.start(echo(comm), shared_tags=True)
            await slow.compute(INPUT, lambda: None)
            await server
        elif comm.rank == 1:
            word = np.zeros(1)
            while word[0] != NO_MORE:
                word[0] += 1
                await comm.send(word, 0)
                await comm.recv(word, 0)

    mpi.run(program(mpi.comm))
    if mpi.comm.rank == 0:
        assert answered == list(range(1, len(answered) + 1))
        assert during[0] >= ECHOES
