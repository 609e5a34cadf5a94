"""Sandblaster equals L-BFGS in a plain loop: in any schedule, with stragglers and after failures."""

from collections import Counter
from math import ceil

import numpy as np
import pytest
from contract import quadratic, quartic
from contract.asynchronous import Failing, Run, common
from contract.schedules import SCHEDULES, ranks_in
from contract.training import digits

from hpcdl.fabric.comm import Counters, PeerLost
from hpcdl.fabric.network import NETWORKS
from hpcdl.fabric.virtual.clocks import in_process, simulated
from hpcdl.nn.backend import backend
from hpcdl.nn.layers import BatchNorm, Flatten, Linear, Sigmoid
from hpcdl.nn.replica import Replica
from hpcdl.training import sandblaster as module
from hpcdl.training.parts.journal import Journal
from hpcdl.training.parts.sandblaster import DIRECTION, PAIRS, SLOPE, SUM, LbfgsCoordinator, Shard

LAYOUTS = [(1, 0), (2, 0), (3, 0), (5, 0), (3, 1), (4, 2), (6, 3), (9, 7)]
"""Ranks and dedicated servers; 7 parameters in up to 9 shards, so that some shards are empty."""


def descend(world, *, make=quartic.session, settings=None, **session):
    """Return the sessions and recorders of all ranks."""
    run = Run(world, make, lambda comm, mine: quartic.descend(comm, mine, **settings or {}), **session)
    return run.sessions, run.recorders


def rows(recorders):
    return [row for recorder in recorders for row in recorder.steps]


@pytest.mark.parametrize(("ranks", "servers"), [*LAYOUTS, (9, 0), (16, 5)])
def test_equals_lbfgs_by_a_plain_loop(ranks, servers):
    sessions, recorders = descend(in_process(ranks), settings={"servers": servers})
    found = common(sessions)
    np.testing.assert_allclose(found, quartic.by_one_loop(), rtol=0, atol=quartic.TOLERANCE)
    assert sum(row.images for row in rows(recorders)) == quartic.STEPS * quadratic.IMAGES
    start = quartic.session().replica.parameters
    assert np.abs(found - start).max() > 0.1


@pytest.mark.slow
def test_no_schedule_deadlocks_or_counts_a_portion_twice():
    """Run 2 to 16 ranks; a portion that counted twice or not at all would change the result."""
    for seed in SCHEDULES:
        ranks = ranks_in(seed)
        servers = seed // 15 % min(4, ranks - 1)
        settings = {"servers": servers, "portions_per_worker": 1 + seed % 2, "push_every": 1 + seed % 3}
        settings["backup"] = seed % 5 > 0
        sessions, recorders = descend(in_process(ranks, seed), steps=3, settings=settings)
        close = quartic.by_one_loop(steps=3)
        np.testing.assert_allclose(common(sessions), close, rtol=0, atol=quartic.TOLERANCE)
        assert sum(row.images for row in rows(recorders)) == 3 * quadratic.IMAGES


def slow(ranks, factor, of):
    """Return a simulated world in which the local work of rank ``of`` takes ``factor`` times as long."""
    compute = lambda rank, _label: 0.01 * (factor if rank == of else 1)
    return simulated(ranks, NETWORKS["infiniband-hdr"], compute=compute)


def test_fast_workers_compute_more_portions():
    """Workers that are four times faster compute four times as many, except at the end."""
    _, recorders = descend(slow(5, 4, of=4), settings={"servers": 1, "portions_per_worker": 12})
    images = [sum(row.images for row in rows([recorder])) for recorder in recorders]
    assert sum(images) == quartic.STEPS * quadratic.IMAGES
    assert images[:2] == [0, 0]
    assert 0 < 2.5 * images[4] < min(images[2:4])


def test_backup_tasks_take_over_from_a_slow_worker():
    """Without backup tasks every gradient waits for the worker that is a hundred times slower."""
    took = {}
    for backup in (True, False):
        world = slow(6, 100, of=4)
        sessions, recorders = descend(world, settings={"servers": 2, "portions_per_worker": 4, "backup": backup})
        np.testing.assert_allclose(common(sessions), quartic.by_one_loop(), rtol=0, atol=quartic.TOLERANCE)
        assert sum(row.images for row in rows(recorders)) == quartic.STEPS * quadratic.IMAGES
        rejected = [row for row in rows(recorders) if row.images == 0]
        assert bool(rejected) == backup
        took[backup] = world.now
    assert took[True] < took[False] / 2


@pytest.mark.parametrize("workers", [1, 3])
def test_workers_fetch_once_per_gradient_and_push_several_portions_at_once(workers, monkeypatch):
    """A single worker of 12 portions pushes after 4 and 8 of them and, near the end, after 10, 11 and 12."""
    begun = {"fetch": [], "push": []}
    for name, calls in begun.items():
        original = getattr(module, name)

        async def counted(comm, *arguments, calls=calls, original=original):
            calls.append(comm.rank)
            await original(comm, *arguments)

        monkeypatch.setattr(module, name, counted)
    settings = {"servers": 1, "portions_per_worker": 12, "push_every": 4}
    descend(in_process(2 + workers, 5), settings=settings)
    fetches, pushes = (Counter(calls) for calls in begun.values())
    assert max(fetches.values()) <= quartic.STEPS
    if workers == 1:
        assert fetches == {2: quartic.STEPS}
        assert pushes == {2: 5 * quartic.STEPS}
    assert pushes.total() < 12 * workers * quartic.STEPS * 2 / 3


@pytest.mark.parametrize("history", [0, 1, 3])
def test_a_rejected_pair_replaces_no_other(history):
    """After five pairs, one of negative curvature is rejected; the newest ``history`` of the five stay."""

    async def program(comm):
        mine = quartic.session()
        shard = Shard(mine, slice(0, quartic.SIZE), history, 1)
        serving = comm.start(shard.serve(comm, 0), shared_tags=True)
        coordinator = LbfgsCoordinator(comm, mine, replicas=[0], workers=[0], servers=[0], new_portions=None)
        coordinator._free.extend((PAIRS + 2 * i, PAIRS + 2 * i + 1) for i in range(history))
        for size in (1.0, 2.0, 3.0, 4.0, 5.0, -1.0):
            shard.vectors[DIRECTION][:] = size
            shard.vectors[SLOPE][:] = 1.0
            shard.vectors[SUM][:] = 1.0 + size**2
            await coordinator._remember(0.5)
        await coordinator._shards.stop()
        await serving
        first = [vector[0] for vector in shard.vectors]
        return [(first[pair.s], first[pair.y], pair.curvature) for pair in coordinator._pairs]

    (kept,) = in_process(1).run(program)
    expected = [(size / 2, size**2, quartic.SIZE * size**3 / 2) for size in (1.0, 2.0, 3.0, 4.0, 5.0)]
    assert kept == expected[5 - history :]


def test_training_time_excludes_tests_and_the_wait_for_stragglers_before_them():
    """A backup task has finished the straggler's last portion, so that only the test waits for it."""
    took = {}
    for every in (1, 1000):
        world = slow(6, 100, of=5)

        def make(recorder, every=every, world=world):
            mine = quartic.session(recorder, evaluate_every=every)
            mine.journal = Journal(recorder, lambda: Counters(round(world.running.time * 1e9), 0, 0, 0, 0))
            return mine

        _, recorders = descend(world, make=make, settings={"servers": 2, "portions_per_worker": 8})
        seen = [recorder.evaluations for recorder in recorders]
        assert all(one == seen[0] for one in seen)
        times = [row.training_seconds for row in seen[0]]
        assert times == sorted(times)
        took[every] = times[-1]
    assert len(times) == 1
    assert took[1] == pytest.approx(took[1000], rel=1e-4)  # except the orders to test
    assert took[1000] < world.now


def test_running_statistics_are_the_mean_over_the_workers():
    """The coordinator and the servers, which train on no image, do not count."""

    def with_norm(recorder, **settings):
        layers = [Flatten("flatten"), Linear("fc1", 16), BatchNorm("bn"), Sigmoid("sigmoid"), Linear("fc2", 10)]
        replica = Replica(layers, digits().shape, backend=backend("numpy"), dtype="float64", seed=3)
        return quartic.session(recorder, replica=replica, dataset=digits(), **settings)

    whole = {"make": with_norm, "steps": 6, "global_batch": 1437}
    alone, _ = descend(in_process(1), settings={"portions_per_worker": 4}, **whole)
    several, _ = descend(in_process(3), settings={"portions_per_worker": 4, "servers": 1}, **whole)
    for one, other in ((alone[0], mine) for mine in several):
        np.testing.assert_allclose(one.replica.state, other.replica.state, atol=1e-9)


def test_the_failure_of_a_server_ends_training():
    with pytest.raises(PeerLost, match="rank 1 is gone"):
        descend(in_process(3), failure=(1, 2))


def test_memory_is_as_documented():
    for ranks, servers in LAYOUTS:
        size, history = 40, 4
        settings = {"servers": servers, "history": history}
        sessions, _ = descend(in_process(ranks), size=size, steps=2, settings=settings)
        holders = range(1, 1 + servers) if servers else range(ranks)
        for rank, mine in enumerate(sessions):
            replica = 2 * size
            shard = range(ceil(size / len(holders)) + 1)[-2:] if rank in holders else [0]
            worker = size if not servers or rank > servers else 0
            assert mine.memory_bytes in [8 * (replica + (6 + 2 * history) * part + worker) for part in shard]
        own = sum(mine.memory_bytes for mine in sessions) / 8 - ranks * 2 * size
        assert own == (6 + 2 * history) * size + (ranks - 1 - servers if servers else ranks) * size


@pytest.mark.slow
@pytest.mark.parametrize("backup", [True, False])
@pytest.mark.parametrize("servers", [1, 2, 3])
def test_every_portion_counts_once_if_a_worker_fails_between_messages(servers, backup):
    """Some shards may have received its last push; others compute its unpushed portions again."""
    close = quartic.by_one_loop(steps=2)
    for lasts in range(45):
        failing = servers + 1 + lasts % 3
        settings = {"servers": servers, "backup": backup, "push_every": 2 + lasts % 4, "portions_per_worker": 12}

        async def train(comm, mine, lasts=lasts, failing=failing, settings=settings):
            await quartic.descend(Failing(comm, lasts) if comm.rank == failing else comm, mine, **settings)

        run = Run(in_process(servers + 4, lasts), quartic.session, train, steps=2)
        survivors = [session for rank, session in enumerate(run.sessions) if rank != failing]
        np.testing.assert_allclose(common(survivors), close, rtol=0, atol=quartic.TOLERANCE)
