"""Compressed updates sent to all ranks: nothing is lost, ranks agree, and few ranks train at first."""

from itertools import chain

import numpy as np
import pytest
from contract.compression import planned
from contract.schedules import SCHEDULES
from contract.tiny import PARAMETERS, replicas, starts, tiny_session

from hpcdl.fabric.virtual.inprocess import in_process
from hpcdl.trace.recorder import Recorder
from hpcdl.training import update_broadcast as module
from hpcdl.training.parts.step_counter import assign_steps, numbered_steps
from hpcdl.training.update_broadcast import update_broadcast

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


def train(ranks, chosen=None, *, seed=0, recorders=None, ramp_steps=0, **keys):
    """Return the sessions of all ranks, which start from equal parameters."""
    start, pool = starts(1)[0], replicas(16)

    async def program(comm):
        recorder = recorders and recorders[comm.rank]
        mine = tiny_session(recorder, start=start, replica=pool[comm.rank], compression=chosen, **keys)
        await update_broadcast(comm, mine, ramp_steps=ramp_steps)
        return mine

    world = in_process(ranks, seed)
    return world.run(program), world


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
    for seed in SCHEDULES[:4]:
        for ranks in (1, 2, 5):
            made.clear()
            sessions, _ = train(ranks, planned(compressor, "allgather", **settings), seed=seed, steps=4)
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
    dense, warm, mixed, sparse = (sum(train(3, one, steps=6)[1].bytes) for one in plans)
    assert dense == warm > mixed > sparse
    sessions, _ = train(3, plans[2], steps=6)
    assert sum(mine.compressed.warmup_bytes for mine in sessions) == 3 * 2 * 2 * PARAMETERS * 8
    assert sum(mine.compressed.saved_bytes for mine in sessions) == warm - mixed


def test_training_learns_nearly_as_with_dense_updates():
    """Error feedback delays updates: the loss on the noise falls with both."""
    losses = []
    for chosen in (None, planned("threshold", "allgather", density=0.3, code="rice")):
        recorders = [Recorder(events=False) for _ in range(3)]
        train(3, chosen, recorders=recorders, steps=60, evaluate_every=5.0)
        losses.append([row.loss for row in recorders[0].evaluations])
    assert losses[1][-1] == pytest.approx(losses[0][-1], rel=0.05)


def test_a_value_that_is_not_finite_is_refused_by_step_and_tensor():
    with pytest.raises(FloatingPointError, match=r"step 1: gradient of fc\.weight: "), np.errstate(all="ignore"):
        train(1, planned("top_k", "allgather"), learning_rate=lambda step: 0.05 if step == 0 else np.inf)


def test_a_corrupt_update_names_its_sender(monkeypatch):
    original = module.deliver

    async def tampered(comm, header, payload, other):
        changed = payload.copy()
        if comm.rank == 1:
            changed[-1] ^= 8
        await original(comm, header, changed, other)

    monkeypatch.setattr(module, "deliver", tampered)
    with pytest.raises(ValueError, match="message of rank 1: corrupt"):
        train(3, planned("top_k", "allgather"))


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


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("ranks", "ramp"), [(1, 9), (2, 9), (5, 1), (5, 30), (5, 100)])
def test_a_rank_gets_no_step_before_its_turn(ranks, ramp, seed):
    async def program(comm):
        if comm.rank == 0:
            comm.start(assign_steps(comm, 60, ranks, ramp=ramp), shared_tags=True)
        return [number async for number in numbered_steps(comm)]

    found = in_process(ranks, seed).run(program)
    assert sorted(chain(*found)) == list(range(60))
    for rank, numbers in enumerate(found):
        assert all(number >= ramp or number * (ranks - 1) >= rank * ramp for number in numbers)
