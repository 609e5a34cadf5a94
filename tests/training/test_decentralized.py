"""Updates sent to everybody: each is applied once by all, who end with the same parameters."""

from collections import Counter

import numpy as np
import pytest
from contract.schedules import ranks_in
from contract.tiny import PARAMETERS, replicas, starts, tiny_session

from hpcdl.fabric.inprocess import in_process
from hpcdl.fabric.network import NETWORKS
from hpcdl.fabric.simulated import simulated
from hpcdl.optim.nesterov import Nesterov
from hpcdl.optim.sgd import SGD
from hpcdl.trace.recorder import Recorder
from hpcdl.training import decentralized as module
from hpcdl.training.decentralized import decentralized
from hpcdl.training.synchronous import synchronous


def train(ranks, *, world=None, seed=0, own=None, recorders=None, pool=None, **keys):
    """Everybody's sessions; all begin at ``own``."""

    async def program(comm):
        fixed = {"replica": pool[comm.rank]} if pool else {}
        mine = tiny_session(recorders and recorders[comm.rank], start=own, **fixed | keys)
        await decentralized(comm, mine)
        return mine

    return (world or in_process(ranks, seed)).run(program)


@pytest.mark.parametrize("block", range(10))
def test_every_update_is_applied_once_by_everybody_whatever_the_schedule(block, monkeypatch):
    """A hundred seeds a block: the parameters moved by the sum of all updates that were made, on every rank."""
    made = []

    def noted(update, payload):
        made.append(update.copy())
        payload[:] = update

    monkeypatch.setattr(module, "encode", noted)
    own = starts(1)[0]
    for seed in range(100 * block, 100 * block + 100):
        made.clear()
        ranks = ranks_in(seed)
        sessions = train(ranks, seed=seed, own=own, pool=replicas(16), steps=2)
        assert len(made) == 2 * ranks
        expected = own + np.sum(made, axis=0)
        for mine in sessions:
            np.testing.assert_allclose(mine.replica.parameters, expected, rtol=0, atol=1e-12)
            np.testing.assert_array_equal(mine.vectors["arrived"], 0)


@pytest.mark.parametrize("ranks", [1, 2, 5, 8])
def test_the_trace_has_every_update_on_every_rank(ranks):
    recorders = [Recorder(events=False) for _ in range(ranks)]
    train(ranks, recorders=recorders, steps=12, evaluate_every=2.0)
    made = [len(recorder.steps) for recorder in recorders]
    assert sum(made) == 12 * ranks
    for rank, recorder in enumerate(recorders):
        assert len(recorder.updates) == 12 * ranks
        assert [sum(row.worker == other for row in recorder.updates) for other in range(ranks)] == made
        assert all(row.staleness == 0 for row in recorder.updates if row.worker == rank)
        assert all(0 <= row.staleness <= row.version for row in recorder.updates)
    if ranks > 1:
        assert max(row.staleness for recorder in recorders for row in recorder.updates) > 0
    assert [row.step for row in recorders[0].evaluations] == [4, 8, 12]
    assert recorders[0].evaluations[-1].consensus < 1e-12


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_staleness_is_the_number_of_updates_that_one_was_computed_without(ranks, seed):
    """Read off the traces alone: an update was computed with what its maker's trace has before it, and no more."""
    recorders = [Recorder(events=False) for _ in range(ranks)]
    train(ranks, seed=seed, recorders=recorders, steps=6)
    order = [[row.worker for row in recorder.updates] for recorder in recorders]
    known = [
        [Counter(seen[:place]) for place, worker in enumerate(seen) if worker == rank]
        for rank, seen in enumerate(order)
    ]
    for recorder, seen in zip(recorders, order, strict=True):
        for place, row in enumerate(recorder.updates):
            here = Counter(seen[:place])
            assert row.version == place
            assert row.staleness == (here - known[row.worker][here[row.worker]]).total()


@pytest.mark.parametrize("optimizer", [lambda: SGD(momentum=0.9, weight_decay=0.01), Nesterov])
@pytest.mark.parametrize("ranks", [2, 5])
def test_updates_from_the_same_parameters_are_a_synchronous_step(ranks, optimizer):
    """One step of each rank, all from the same start: also with unequal shares."""

    async def program(comm):
        mine = tiny_session(optimizer=optimizer(), steps=1)
        await synchronous(comm, mine)
        return mine.replica.parameters

    (expected,) = in_process(1).run(program)
    recorders = [Recorder(events=False) for _ in range(ranks)]

    async def one_each(comm):
        mine = tiny_session(recorders[comm.rank], optimizer=optimizer(), steps=1)
        await decentralized(comm, mine)
        return mine.replica.parameters

    same_pace = simulated(ranks, NETWORKS["ethernet-1g"], compute=lambda _rank, _label: 1e-3)
    found = same_pace.run(one_each)
    assert [len(recorder.steps) for recorder in recorders] == [1] * ranks
    for parameters in found:
        np.testing.assert_allclose(parameters, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("seed", range(10))
def test_no_rank_is_flooded(seed, monkeypatch):
    """Of each rank one update at most is on its way, whoever is slow: p - 1 to a rank."""
    on_their_way, most = {}, []
    original = module.deliver

    async def counted(comm, note, payload, other):
        on_their_way[comm.rank, other] = on_their_way.get((comm.rank, other), 0) + 1
        most.append(on_their_way[comm.rank, other])
        await original(comm, note, payload, other)
        on_their_way[comm.rank, other] -= 1

    monkeypatch.setattr(module, "deliver", counted)
    train(5, seed=seed, steps=10)
    assert set(most) == {1}
    assert len(most) == 4 * 50


def test_a_slow_rank_holds_nobody_back():
    """In virtual time, one of four ranks five times slower: the others make its steps."""
    recorders = [Recorder(events=False) for _ in range(4)]
    seconds = lambda rank, _label: 1e-3 * (5 if rank == 3 else 1)
    world = simulated(4, NETWORKS["ethernet-10g"], compute=seconds)
    train(4, world=world, recorders=recorders, steps=100)
    made = [len(recorder.steps) for recorder in recorders]
    assert sum(made) == 400
    assert made[3] < 30
    assert min(made[:3]) > 110


def test_memory_is_as_documented():
    """Beside parameters and gradients: outgoing, before, incoming and arrived."""
    assert {mine.memory_bytes // (PARAMETERS * 8) for mine in train(4)} == {2 + 4}
