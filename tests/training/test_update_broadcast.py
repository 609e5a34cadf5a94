"""Updates sent to all ranks: each rank applies each update once; all ranks end with equal parameters."""

from collections import Counter
from itertools import product

import numpy as np
import pytest
from contract import tiny
from contract.compression import planned
from contract.schedules import SCHEDULES, ranks_in
from contract.tiny import PARAMETERS, replicas, starts

from hpcdl.fabric.virtual.clocks import in_process
from hpcdl.trace.recorder import Recorder
from hpcdl.training import update_broadcast as module
from hpcdl.training.update_broadcast import update_broadcast


def train(ranks, chosen=None, *, seed=0, recorders=None, ramp_steps=0, **keys):
    """Return the sessions of all ranks, which start from equal parameters, and the world."""
    world, keys = in_process(ranks, seed), {"compression": chosen, **keys}
    place = {"world": world, "own": starts(1).repeat(ranks, axis=0), "pool": replicas(16), "recorders": recorders}
    return tiny.train(update_broadcast, ranks, keys=keys, ramp_steps=ramp_steps, **place), world


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
def test_staleness_is_the_number_of_updates_missing_from_the_gradients_parameters(ranks, seed):
    """Recompute it from the traces of all updates: an update knows the updates that its rank applied before."""
    recorders = [Recorder(events=False) for _ in range(ranks)]
    train(ranks, seed=seed, recorders=recorders, steps=6, evaluate_every=2.0)
    assert [row.step for row in recorders[0].evaluations] == [4, 6]
    assert recorders[0].evaluations[-1].consensus < 1e-12
    made = {rank: len(recorder.steps) for rank, recorder in enumerate(recorders)}
    order = [[row.worker for row in recorder.updates] for recorder in recorders]
    assert sum(made.values()) == 6 * ranks
    assert all(+Counter(made) == Counter(seen) for seen in order)
    known = [
        [Counter(seen[:place]) for place, worker in enumerate(seen) if worker == rank]
        for rank, seen in enumerate(order)
    ]
    for recorder, seen in zip(recorders, order, strict=True):
        for place, row in enumerate(recorder.updates):
            here = Counter(seen[:place])
            assert row.version == place
            assert row.staleness == (here - known[row.worker][here[row.worker]]).total()
    assert (ranks > 1) == any(row.staleness for recorder in recorders for row in recorder.updates)


MESSAGES = [
    pytest.param(None, marks=pytest.mark.slow),  # dense, in all schedules
    *("threshold", "top_k", "dgc", "one_bit", "ef_sign"),
    *("qsgd", "terngrad", "deep_compression", "fp16", "random_k"),
]


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
    plan = compressor and planned(compressor, "allgather", **settings)
    worlds = product(SCHEDULES[:2], (1, 2, 5)) if plan else ((seed, ranks_in(seed)) for seed in SCHEDULES)
    for seed, ranks in worlds:
        made.clear()
        sessions, _ = train(ranks, plan, seed=seed, steps=3)
        assert len(made) == 3 * ranks
        first = sessions[0].replica.parameters
        for mine in sessions:
            np.testing.assert_allclose(mine.replica.parameters, first, rtol=0, atol=1e-12)
            np.testing.assert_array_equal(mine.vectors["received"], 0)
        if plan is None or sessions[0].compressed.residual is not None:
            left = sum(mine.compressed.residual for mine in sessions) if plan else 0
            expected = starts(1)[0] + np.sum(made, axis=0)
            np.testing.assert_allclose(first + left, expected, rtol=0, atol=1e-12)


def test_dense_updates_come_first_and_messages_are_short():
    plans = [None, *(planned("top_k", "allgather", density=0.1, warmup_steps=steps) for steps in (100, 2, 0))]
    dense, warm, mixed, sparse = (sum(train(3, one, steps=6)[1].bytes) for one in plans)
    assert dense == warm > mixed > sparse
    sessions, _ = train(3, plans[2], steps=6)
    assert sum(mine.compressed.warmup_bytes for mine in sessions) == 3 * 2 * 2 * PARAMETERS * 8
    assert sum(mine.compressed.exchanges[0, PARAMETERS] for mine in sessions) == 3 * 6


@pytest.mark.parametrize("ranks", [1, 2, 5])
@pytest.mark.parametrize("ramp_steps", [0, 1, 20, 1000])
def test_the_number_of_ranks_that_train_rises(ranks, ramp_steps):
    recorders = [Recorder(events=False) for _ in range(ranks)]
    sessions, _ = train(ranks, recorders=recorders, ramp_steps=ramp_steps, steps=8)
    assert sum(len(one.steps) for one in recorders) == 8 * ranks
    for mine in sessions:
        np.testing.assert_allclose(mine.replica.parameters, sessions[0].replica.parameters, atol=1e-12)
    for rank, recorder in enumerate(recorders):
        if rank * ramp_steps > 8 * ranks * max(1, ranks - 1):
            assert not recorder.steps
