"""Reductions of Intel's lecture: every number sent and summed, as in its drawings."""

import numpy as np
import pytest

from hpcdl.aggregation.butterfly import butterfly
from hpcdl.aggregation.ring import ring
from hpcdl.aggregation.tree import tree
from hpcdl.fabric.virtual.inprocess import in_process


class Recording:
    """A communicator that records each value sent and each sum."""

    def __init__(self, comm):
        self._comm = comm
        self.sent = []
        self.sums = []

    def __getattr__(self, name):
        return getattr(self._comm, name)

    async def send(self, buffer, dest, tag=0):
        self.sent.append((dest, *buffer.tolist()))
        await self._comm.send(buffer, dest, tag)

    async def exchange(self, outgoing, dest, incoming, source, tag=0):
        self.sent.append((dest, *outgoing.tolist()))
        return await self._comm.exchange(outgoing, dest, incoming, source, tag)

    async def add(self, into, addend):
        await self._comm.add(into, addend)
        self.sums.append(*into.tolist())


def recorded(aggregate, rows, seed):
    """Return what each rank sent, its sums, and its final vector."""

    async def program(comm):
        recording = Recording(comm)
        mine = np.array(rows[comm.rank], float)
        await aggregate(recording, mine)
        return recording.sent, recording.sums, mine.tolist()

    return zip(*in_process(len(rows), seed).run(program), strict=True)


@pytest.mark.parametrize("seed", range(2))
def test_a_tree_of_seven(seed):
    """1 + 2 + 5 = 8 and 3 + 4 + 6 = 13, then 8 + 13 + 7 = 28, and a broadcast in two steps."""
    sent, sums, held = recorded(tree, [[1], [2], [3], [4], [5], [6], [7]], seed)
    assert [total[-1:] for total in sums] == [[], [], [], [], [8], [13], [28]]
    assert [len(total) for total in sums] == [0, 0, 0, 0, 2, 2, 2]
    up = [mine[:1] for mine in sent[:6]]
    assert up == [[(4, 1)], [(4, 2)], [(5, 3)], [(5, 4)], [(6, 8)], [(6, 13)]]
    back = [sorted(mine[1:]) for mine in sent[:6]] + [sorted(sent[6])]
    assert back == [[], [], [], [], [(0, 28), (1, 28)], [(2, 28), (3, 28)], [(4, 28), (5, 28)]]
    assert held == ([28],) * 7


@pytest.mark.parametrize("seed", range(2))
def test_a_butterfly_of_four(seed):
    """{1, 2, 3, 4} to {3, 3, 7, 7} to {10, 10, 10, 10}."""
    sent, sums, held = recorded(butterfly, [[1], [2], [3], [4]], seed)
    assert list(sent) == [[(1, 1), (2, 3)], [(0, 2), (3, 3)], [(3, 3), (0, 7)], [(2, 4), (1, 7)]]
    assert [step[0] for step in sums] == [3, 3, 7, 7]
    assert [step[1] for step in sums] == [10, 10, 10, 10]
    assert held == ([10],) * 4


@pytest.mark.parametrize("seed", range(2))
def test_a_ring_of_four(seed):
    """Each rank adds to a chunk, 1, 11, 111, 1111; then the sum goes around."""
    rows = [[1, 1, 1, 1], [10, 10, 10, 10], [100, 100, 100, 100], [1000, 1000, 1000, 1000]]
    sent, sums, held = recorded(ring, rows, seed)
    assert list(sums) == [[1001, 1101, 1111], [11, 1011, 1111], [110, 111, 1111], [1100, 1110, 1111]]
    for rank, mine in enumerate(sent):
        right = (rank + 1) % 4
        assert mine == [(right, value) for value in (rows[rank][0], *sums[rank], 1111, 1111)]
    assert held == ([1111] * 4,) * 4
