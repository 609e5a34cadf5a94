"""Updates sent to all ranks: each rank applies each update once; all ranks end with equal parameters."""

from collections import Counter

import numpy as np
import pytest
from contract import tiny
from contract.compression import planned
from contract.schedules import SCHEDULES, ranks_in
from contract.tiny import PARAMETERS, replicas, starts

from hpcdl.fabric.network import NETWORKS
from hpcdl.fabric.virtual.inprocess import in_process
from hpcdl.fabric.virtual.simulated import simulated
from hpcdl.trace.recorder import Recorder
from hpcdl.training import update_broadcast as module
from hpcdl.training.update_broadcast import update_broadcast


def train(ranks, *, own=None, ramp_steps=0, world=None, seed=0, recorders=None, pool=None, **keys):
    """Return the sessions of all ranks, which start from the parameters ``own``."""
    rows = None if own is None else [own] * ranks
    place = {"world": world, "seed": seed, "recorders": recorders, "pool": pool}
    return tiny.train(update_broadcast, ranks, own=rows, keys=keys, ramp_steps=ramp_steps, **place)


@pytest.mark.slow
def test_every_rank_applies_every_update_once_in_any_schedule(monkeypatch):
    """The parameters of every rank change by the sum of all updates."""
    made = []

    def recorded(payload, update):
        made.append(update.copy())
        payload[:] = update

    monkeypatch.setattr(module, "assign", recorded)
    own = starts(1)[0]
    for seed in SCHEDULES:
        made.clear()
        ranks = ranks_in(seed)
        sessions = train(ranks, seed=seed, own=own, pool=replicas(16), steps=2)
        assert len(made) == 2 * ranks
        expected = own + np.sum(made, axis=0)
        for mine in sessions:
            np.testing.assert_allclose(mine.replica.parameters, expected, rtol=0, atol=1e-12)
            np.testing.assert_array_equal(mine.vectors["received"], 0)


def test_the_trace_has_every_update_on_every_rank():
    for ranks in [1, 2, 5, 8]:
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
def test_staleness_is_the_number_of_updates_missing_from_the_gradients_parameters(ranks, seed):
    """Recompute it from the traces: an update knows the updates that its rank applied before."""
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


@pytest.mark.parametrize("seed", range(10))
def test_at_most_one_update_is_under_way_between_two_ranks(seed, monkeypatch):
    under_way, most = {}, []
    original = module.deliver

    async def counted(comm, header, payload, other):
        under_way[comm.rank, other] = under_way.get((comm.rank, other), 0) + 1
        most.append(under_way[comm.rank, other])
        await original(comm, header, payload, other)
        under_way[comm.rank, other] -= 1

    monkeypatch.setattr(module, "deliver", counted)
    train(5, seed=seed, steps=10)
    assert set(most) == {1}
    assert len(most) == 4 * 50


def test_a_slow_rank_delays_no_other_rank():
    """One of four ranks is five times slower in virtual time; the three others make its steps."""
    recorders = [Recorder(events=False) for _ in range(4)]
    seconds = lambda rank, _label: 1e-3 * (5 if rank == 3 else 1)
    world = simulated(4, NETWORKS["ethernet-10g"], compute=seconds)
    train(4, world=world, recorders=recorders, steps=100)
    made = [len(recorder.steps) for recorder in recorders]
    assert sum(made) == 400
    assert made[3] < 30
    assert min(made[:3]) > 110


def test_memory_is_as_documented():
    """Parameters and gradients; ``outgoing``, ``before``, ``incoming`` and ``received``."""
    assert {mine.memory_bytes // (PARAMETERS * 8) for mine in train(4)} == {2 + 4}


MESSAGES = [
    "threshold",
    "top_k",
    "dgc",
    "one_bit",
    "ef_sign",
    "qsgd",
    "terngrad",
    "deep_compression",
    "fp16",
    "random_k",
]


def encoded(ranks, chosen=None, *, seed=0, **keys):
    """Return the sessions of all ranks, which start from equal parameters, and the world."""
    world = in_process(ranks, seed)
    return train(ranks, world=world, own=starts(1)[0], pool=replicas(16), compression=chosen, **keys), world


@pytest.mark.parametrize("compressor", MESSAGES)
def test_all_ranks_apply_what_is_sent_and_the_residual_keeps_the_rest(compressor, monkeypatch):
    """Summed over ranks: applied + residuals = updates made. DGC's momentum and random draws change the sum."""
    made = []
    original = module.make_update

    def recorded(session, *operands):
        original(session, *operands)
        made.append(session.replica.parameters.copy())

    monkeypatch.setattr(module, "make_update", recorded)
    settings = {"density": 0.2} if compressor in ("top_k", "threshold", "dgc") else {}
    for seed in SCHEDULES[:2]:
        for ranks in (1, 2, 5):
            made.clear()
            sessions, _ = encoded(ranks, planned(compressor, "allgather", **settings), seed=seed, steps=4)
            assert len(made) == 4 * ranks
            first = sessions[0].replica.parameters
            for mine in sessions:
                np.testing.assert_allclose(mine.replica.parameters, first, rtol=0, atol=1e-12)
                np.testing.assert_array_equal(mine.vectors["received"], 0)
            if sessions[0].compressed.residual is not None:
                left = sum(mine.compressed.residual for mine in sessions)
                expected = starts(1)[0] + np.sum(made, axis=0)
                np.testing.assert_allclose(first + left, expected, rtol=0, atol=1e-12)


def test_dense_updates_come_first_and_messages_are_short():
    plans = [None, *(planned("top_k", "allgather", density=0.1, warmup_steps=steps) for steps in (100, 2, 0))]
    dense, warm, mixed, sparse = (sum(encoded(3, one, steps=6)[1].bytes) for one in plans)
    assert dense == warm > mixed > sparse
    sessions, _ = encoded(3, plans[2], steps=6)
    assert sum(mine.compressed.warmup_bytes for mine in sessions) == 3 * 2 * 2 * PARAMETERS * 8
    assert sum(mine.compressed.saved_bytes for mine in sessions) == warm - mixed


def test_a_corrupt_update_names_its_sender(monkeypatch):
    original = module.deliver

    async def tampered(comm, header, payload, other):
        changed = payload.copy()
        if comm.rank == 1:
            changed[-1] ^= 8
        await original(comm, header, changed, other)

    monkeypatch.setattr(module, "deliver", tampered)
    with pytest.raises(ValueError, match="message of rank 1: corrupt"):
        encoded(3, planned("top_k", "allgather"))


@pytest.mark.parametrize("ranks", [1, 2, 5])
@pytest.mark.parametrize("ramp_steps", [0, 1, 20, 1000])
def test_the_number_of_ranks_that_train_rises(ranks, ramp_steps):
    recorders = [Recorder(events=False) for _ in range(ranks)]
    sessions, _ = encoded(ranks, recorders=recorders, ramp_steps=ramp_steps, steps=8)
    assert sum(len(one.steps) for one in recorders) == 8 * ranks
    for mine in sessions:
        np.testing.assert_allclose(mine.replica.parameters, sessions[0].replica.parameters, atol=1e-12)
    for rank, recorder in enumerate(recorders):
        if rank * ramp_steps > 8 * ranks * max(1, ranks - 1):
            assert not recorder.steps
