"""A slow rank is slow in its own work, and not in what it does for others."""

from time import sleep

import numpy as np
import pytest

from hpcdl.fabric.comm import INPUT
from hpcdl.fabric.straggler import Delays, Straggler, slowed

pytestmark = [pytest.mark.mpi(min_size=2)]

ECHOES = 20


def test_a_rank_that_pauses_answers_meanwhile(mpi):
    """Each echo needs the one before it, so that the first few cannot have been waiting for the pause."""
    answered, during = [], []

    def until_answered(_seconds):
        before = len(answered)
        for _ in range(10_000):
            if len(answered) == ECHOES:
                break
            sleep(0.001)
        during.append(len(answered) - before)

    async def echo(comm):
        word = np.zeros(1)
        for _ in range(ECHOES):
            await comm.recv(word, 1)
            answered.append(word[0])
            await comm.send(word, 1)

    async def program(comm):
        if comm.rank == 0:
            slow = slowed(comm, Delays(Straggler(rank=0, probability=1, seconds=1), 1), pause=until_answered)
            server = slow.start(echo(comm), shared_tags=True)
            await slow.compute(INPUT, lambda: None)
            await server
        elif comm.rank == 1:
            word = np.zeros(1)
            for number in range(ECHOES):
                word[0] = number
                await comm.send(word, 0)
                await comm.recv(word, 0)

    mpi.run(program(mpi.comm))
    if mpi.comm.rank == 0:
        assert answered == list(range(ECHOES))
        assert during[0] > ECHOES // 2
