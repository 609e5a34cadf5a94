"""A slow rank is slow in its own work, and not in what it does for others."""

from time import sleep

import numpy as np
import pytest

from hpcdl.fabric.comm import INPUT
from hpcdl.fabric.straggler import Delays, Straggler, slowed

pytestmark = [pytest.mark.mpi(min_size=2)]

ECHOES = 10
NO_MORE = -1


def test_a_rank_that_pauses_answers_meanwhile(mpi):
    """Each echo needs the one before it, so that no more than one of them can have been waiting for the pause."""
    answered, during = [], []

    def until_answered(seconds):
        if not seconds:  # what the rank's factor costs it, which is 1
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
            slow = slowed(comm, Delays(Straggler(rank=0, probability=1, seconds=1), 1), pause=until_answered)
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
