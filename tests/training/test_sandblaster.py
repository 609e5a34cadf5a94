"""Sandblaster is L-BFGS on one processor, whoever computes what, and whoever is slow or dies."""

from collections import Counter
from math import ceil

import numpy as np
import pytest
from contract import bowl, valley
from contract.schedules import SCHEDULES, ranks_in
from contract.training import digits

from hpcdl.fabric.comm import Gauge, PeerLost
from hpcdl.fabric.failure import Died
from hpcdl.fabric.inprocess import in_process
from hpcdl.fabric.network import NETWORKS
from hpcdl.fabric.simulated import simulated
from hpcdl.nn.backend import backend
from hpcdl.nn.layers.batch_norm import BatchNorm
from hpcdl.nn.layers.flatten import Flatten
from hpcdl.nn.layers.linear import Linear
from hpcdl.nn.layers.sigmoid import Sigmoid
from hpcdl.nn.replica import Replica
from hpcdl.optim.sgd import SGD
from hpcdl.registry import in_full
from hpcdl.trace.recorder import Evaluation, Recorder, Step
from hpcdl.training import sandblaster as module
from hpcdl.training.coordination.coordinator import LbfgsCoordinator
from hpcdl.training.coordination.vector_shards import DIRECTION, PAIRS, SLOPE, SUM, Shard
from hpcdl.training.journal import Journal
from hpcdl.training.sandblaster import check, sandblaster

LAYOUTS = [(1, 0), (2, 0), (3, 0), (5, 0), (3, 1), (4, 2), (6, 3), (9, 7)]
"""Ranks and dedicated servers; 7 shards of 7 parameters, 9 shards of as many: some have nothing."""


def descend(world, *, make=valley.session, settings=None, **session):
    """Everybody's session and recorder, when all is over and no message is left."""
    recorders = [Recorder(events=False) for _ in range(world.ranks)]
    sessions = [make(recorder, **session) for recorder in recorders]
    world.run(lambda comm: valley.descend(comm, sessions[comm.rank], **settings or {}))
    assert not [post for group in world.groups for box in group.mailboxes.values() for post in box.posts()]
    return sessions, recorders


def parameters(sessions):
    """Everybody's, who have the same."""
    first, *others = (session.replica.parameters for session in sessions)
    assert all(np.array_equal(first, other) for other in others)
    return first


def rows(recorders):
    return [Step(*row) for recorder in recorders for row in recorder.steps]


@pytest.mark.parametrize(("ranks", "servers"), [*LAYOUTS, (9, 0), (16, 5)])
def test_equals_lbfgs_by_a_plain_loop(ranks, servers):
    for seed in range(3):
        sessions, recorders = descend(in_process(ranks, seed), settings={"servers": servers})
        found = parameters(sessions)
        np.testing.assert_allclose(found, valley.by_one_loop(), rtol=0, atol=valley.TOLERANCE)
        assert sum(row.images for row in rows(recorders)) == valley.STEPS * bowl.IMAGES
    start = valley.session().replica.parameters
    assert np.abs(found - start).max() > 0.1


@pytest.mark.parametrize("seeds", [SCHEDULES[k::10] for k in range(10)], ids=str)
def test_no_schedule_of_a_thousand_deadlocks_or_counts_a_portion_twice(seeds):
    """2 to 16 ranks; one that counts twice, or not at all, would change where L-BFGS ends."""
    for seed in seeds:
        ranks = ranks_in(seed)
        servers = seed // 15 % min(4, ranks - 1)
        settings = {
            "servers": servers,
            "portions_per_worker": 1 + seed % 2,
            "push_every": 1 + seed % 3,
            "backup": seed % 5 > 0,
        }
        sessions, recorders = descend(in_process(ranks, seed), steps=3, settings=settings)
        close = valley.by_one_loop(steps=3)
        np.testing.assert_allclose(parameters(sessions), close, rtol=0, atol=valley.TOLERANCE)
        assert sum(row.images for row in rows(recorders)) == 3 * bowl.IMAGES


def slow(ranks, factor, *, of=1, take=0.01):
    """A world in virtual time in which rank ``of``'s local work takes ``factor`` times as long."""
    network = NETWORKS["infiniband-hdr"]
    return simulated(ranks, network, compute=lambda rank, label: take * (factor if rank == of else 1))


def test_fast_workers_do_more():
    """Those that are four times faster do four times as much, but for the portions at the end."""
    _, recorders = descend(slow(5, 4, of=4), settings={"servers": 1, "portions_per_worker": 12})
    images = [sum(row.images for row in rows([recorder])) for recorder in recorders]
    assert sum(images) == valley.STEPS * bowl.IMAGES
    assert images[:2] == [0, 0]
    assert 0 < 2.5 * images[4] < min(images[2:4])


def test_backup_tasks_take_over_from_a_slow_worker():
    """A hundred times slower than the others: without backups they wait for it in every gradient."""
    took = {}
    for backup in (True, False):
        world = slow(6, 100, of=4)
        sessions, recorders = descend(world, settings={"servers": 2, "portions_per_worker": 4, "backup": backup})
        np.testing.assert_allclose(parameters(sessions), valley.by_one_loop(), rtol=0, atol=valley.TOLERANCE)
        assert sum(row.images for row in rows(recorders)) == valley.STEPS * bowl.IMAGES
        in_vain = [row for row in rows(recorders) if row.images == 0]
        assert bool(in_vain) == backup
        took[backup] = world.now
    assert took[True] < took[False] / 2


@pytest.mark.parametrize("workers", [1, 3])
def test_parameters_come_once_for_a_gradient_and_portions_leave_together(workers, monkeypatch):
    """A lone worker of 12 portions sends after 4 and after 8 of them; then, near the end, after 10, 11 and 12."""
    begun = {"fetch": [], "push": []}
    for what, calls in begun.items():
        original = getattr(module, what)

        async def counted(comm, *arguments, calls=calls, original=original):
            calls.append(comm.rank)
            await original(comm, *arguments)

        monkeypatch.setattr(module, what, counted)
    settings = {"servers": 1, "portions_per_worker": 12, "push_every": 4}
    descend(in_process(2 + workers, 5), settings=settings)
    fetches, pushes = (Counter(calls) for calls in begun.values())
    assert max(fetches.values()) <= valley.STEPS
    if workers == 1:
        assert fetches == {2: valley.STEPS}
        assert pushes == {2: 5 * valley.STEPS}
    assert pushes.total() < 12 * workers * valley.STEPS * 2 / 3


@pytest.mark.parametrize("history", [0, 1, 3])
def test_a_pair_that_is_not_kept_costs_no_other(history):
    """Five pairs of growing steps, then one of negative curvature: the newest ``history`` of the five stay."""

    async def program(comm):
        mine = valley.session()
        shard = Shard(mine, slice(0, valley.SIZE), history, 1)
        serving = comm.start(shard.serve(comm, 0), shared_tags=True)
        coordinator = LbfgsCoordinator(comm, mine, workers=[0], servers=[0], book=None)
        coordinator._free.extend((PAIRS + 2 * i, PAIRS + 2 * i + 1) for i in range(history))
        for size in (1.0, 2.0, 3.0, 4.0, 5.0, -1.0):
            shard.vectors[DIRECTION][:] = size
            shard.vectors[SLOPE][:] = 1.0
            shard.vectors[SUM][:] = 1.0 + size**2
            await coordinator._remember(0.5)
        await coordinator._shards.stop()
        await serving
        return [
            (shard.vectors[pair.s][0], shard.vectors[pair.y][0], pair.curvature) for pair in coordinator._pairs
        ]

    (kept,) = in_process(1).run(program)
    expected = [(size / 2, size**2, valley.SIZE * size**3 / 2) for size in (1.0, 2.0, 3.0, 4.0, 5.0)]
    assert kept == expected[5 - history :]


def network(*, batch_norm=False):
    normed = [BatchNorm("bn")] if batch_norm else []
    layers = [Flatten("flatten"), Linear("fc1", 16), *normed, Sigmoid("sigmoid"), Linear("fc2", 10)]
    return Replica(layers, digits().shape, backend=backend("numpy"), dtype="float64", seed=3)


def learn(recorder=None, **settings):
    """One rank's side of learning digits with a small network."""
    return valley.session(recorder, replica=network(), dataset=digits(), **settings)


def training_loss(replica):
    data = digits()
    images, labels = data.train.batch(np.arange(len(data.train)), "float64")
    return replica.loss(replica.predict(images), labels, 1.0, train=False)[0] / len(data.train)


def by_sgd(rate, momentum, steps):
    mine = learn(global_batch=len(digits().train))
    replica, optimizer = mine.replica, SGD(momentum=momentum)
    x, labels = mine.batch(0, 0, 1)
    for _ in range(steps):
        y = x
        for stage in replica.stages:
            y = stage.forward(y)
        _, _, dy = replica.loss(y, labels, 1 / len(x))
        for stage in reversed(replica.stages):
            dy = stage.backward(dy)
        optimizer.update(replica.parameters, replica.gradients, rate)
    return training_loss(replica)


def test_full_batch_on_digits_gets_lower_than_sgd_in_as_many_gradients():
    steps = 60
    best = min(
        by_sgd(rate, momentum, steps) for momentum in (0.0, 0.9) for rate in (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
    )
    whole = len(digits().train)
    settings = {"history": 10}
    sessions, recorders = descend(in_process(3), make=learn, steps=steps, global_batch=whole, settings=settings)
    assert training_loss(sessions[0].replica) < best / 2
    assert sum(row.images for row in rows(recorders)) == steps * whole


def test_large_batches_learn_too_and_ranks_do_not_matter():
    settings = {"steps": 20, "global_batch": 360}
    ends = []
    for ranks in (1, 4):
        sessions, recorders = descend(in_process(ranks), make=learn, **settings)
        ends.append(parameters(sessions))
        assert sum(row.images for row in rows(recorders)) == 20 * 360
    np.testing.assert_allclose(*ends, rtol=0, atol=1e-7)
    assert training_loss(sessions[0].replica) < training_loss(network()) / 2


def test_evaluations_tell_how_many_images_there_have_been():
    _, recorders = descend(
        in_process(4, 2), make=learn, steps=15, global_batch=1437, settings={"servers": 1}, evaluate_every=4
    )
    seen = [[Evaluation(*row) for row in recorder.evaluations] for recorder in recorders]
    assert seen[0] == seen[1] == seen[2] == seen[3]
    assert all(row.samples == row.step * 1437 and row.epoch == row.step for row in seen[0])
    assert seen[0][-1].step == 15
    assert len(seen[0]) in (3, 4)
    assert all(at.step >= 4 * (i + 1) for i, at in enumerate(seen[0][:-1]))
    assert seen[0][-1].loss < seen[0][0].loss


def test_waiting_for_a_straggler_before_a_test_is_no_training():
    """Its last portion has been another's long ago. Tests, and waiting for them, change no time to accuracy."""
    took = {}
    for every in (1, 1000):
        world = slow(6, 100, of=5)
        recorders = [Recorder(events=False) for _ in range(6)]

        def make(recorder, every=every, world=world):
            mine = valley.session(recorder, evaluate_every=every)
            mine.journal = Journal(recorder, lambda: Gauge(round(world.now * 1e9), 0, 0, 0, 0))
            return mine

        sessions = [make(recorder) for recorder in recorders]
        world.run(lambda comm, s=sessions: valley.descend(comm, s[comm.rank], servers=2, portions_per_worker=8))
        seen = [[Evaluation(*row) for row in recorder.evaluations] for recorder in recorders]
        assert all(one == seen[0] for one in seen)
        took[every] = seen[0][-1].training_seconds
        times = [row.training_seconds for row in seen[0]]
        assert times == sorted(times)
    assert len(times) == 1
    assert took[1] <= took[1000] < world.now


@pytest.mark.parametrize("servers", [0, 2])
def test_training_stops_at_the_target_if_told_so(servers):
    wanted = {"target_accuracy": 0.5, "steps": 20, "global_batch": 1437, "evaluate_every": 1}
    taken = {}
    for stop in (True, False):
        _, recorders = descend(
            in_process(4), make=learn, stop_at_target=stop, settings={"servers": servers}, **wanted
        )
        taken[stop] = Evaluation(*recorders[0].evaluations[-1])
        accuracies = [Evaluation(*row).accuracy for row in recorders[0].evaluations]
        if stop:
            assert max(accuracies[:-1], default=0) < 0.5 <= accuracies[-1]
            assert len(set(recorders[0].evaluations)) == len(accuracies)
    assert taken[True].step < taken[False].step == 20


def test_it_ends_early_where_the_loss_is_lowest():
    """In single precision there is a lowest point that can be seen; it is tested there, before the budget is out."""
    sessions, recorders = descend(in_process(3), steps=400, dtype="float32")
    last = Evaluation(*recorders[0].evaluations[-1])
    assert last.step < 400
    assert sum(row.images for row in rows(recorders)) == last.step * bowl.IMAGES
    low = valley.by_one_loop(steps=40)
    np.testing.assert_allclose(parameters(sessions), low, atol=1e-3)


@pytest.mark.parametrize("steps", range(1, 9))
def test_no_gradient_more_than_there_are_steps(steps):
    """Wherever the budget ends: before the first direction, within a line search, after one."""
    for batch in (bowl.IMAGES, 16):
        _, recorders = descend(in_process(2), steps=steps, global_batch=batch)
        assert sum(row.images for row in rows(recorders)) == steps * batch
        assert Evaluation(*recorders[0].evaluations[-1]).step == steps


def test_batch_statistics_are_those_of_the_workers():
    """Averaged over them; coordinator and servers, who saw no image, have no say."""

    def with_norm(recorder, **settings):
        mine = learn(recorder, **settings)
        mine.replica = network(batch_norm=True)
        return mine

    whole = {"make": with_norm, "steps": 6, "global_batch": 1437}
    alone, _ = descend(in_process(1), settings={"portions_per_worker": 4}, **whole)
    apart, _ = descend(in_process(3), settings={"portions_per_worker": 4, "servers": 1}, **whole)
    for one, other in ((alone[0], mine) for mine in apart):
        np.testing.assert_allclose(one.replica.state, other.replica.state, atol=1e-9)


@pytest.mark.parametrize(("servers", "when"), [(1, (0, 1, 2, 5)), (2, (0, 1, 3, 6)), (3, (2, 4))])
def test_a_worker_that_dies_loses_nothing(servers, when):
    """Before any of its portions, in 9 schedules each: others compute again what it had and had not sent."""
    ranks = servers + 4
    for seed in range(9):
        for step in when:
            dies = servers + 1 + seed % 3

            def mortal(recorder, rank, dies=dies, step=step):
                def before_step(now):
                    if (rank, now) == (dies, step):
                        raise Died

                return valley.session(recorder, before_step=before_step, steps=6)

            recorders = [Recorder(events=False) for _ in range(ranks)]
            sessions = [mortal(recorder, rank) for rank, recorder in enumerate(recorders)]
            in_process(ranks, seed).run(
                lambda comm, s=sessions, n=servers: valley.descend(comm, s[comm.rank], servers=n)
            )
            lives = [session for rank, session in enumerate(sessions) if rank != dies]
            close = valley.by_one_loop(steps=6)
            np.testing.assert_allclose(parameters(lives), close, rtol=0, atol=valley.TOLERANCE)
            assert Evaluation(*recorders[0].evaluations[-1]).step == 6


def test_a_server_that_dies_ends_it():
    def program(comm):
        def before_step(now):
            if comm.rank == 1 and now == 2:
                raise Died

        return valley.descend(comm, valley.session(before_step=before_step))

    with pytest.raises(PeerLost, match="rank 1 is gone"):
        in_process(3).run(program)


@pytest.mark.parametrize(("ranks", "servers"), LAYOUTS)
def test_memory_is_what_the_docstring_says(ranks, servers):
    size, history = 40, 4
    settings = {"servers": servers, "history": history}
    sessions, _ = descend(in_process(ranks), size=size, steps=2, settings=settings)
    holders = range(1, 1 + servers) if servers else range(ranks)
    for rank, mine in enumerate(sessions):
        replica = 2 * size
        shard = range(ceil(size / len(holders)) + 1)[-2:] if rank in holders else [0]
        worker = size if not servers or rank > servers else 0
        assert mine.memory_bytes in [8 * (replica + (6 + 2 * history) * part + worker) for part in shard]
    held = sum(mine.memory_bytes for mine in sessions) / 8 - ranks * 2 * size
    assert held == (6 + 2 * history) * size + (ranks - 1 - servers if servers else ranks) * size


@pytest.mark.parametrize(
    ("ranks", "settings", "text"),
    [
        (3, {"servers": 2}, "servers: 2 of them, a coordinator and a worker need more than 3 ranks"),
        (1, {"servers": 1}, "servers"),
        (2, {"servers": -1}, "servers: must be at least 0, not -1"),
        (2, {"history": -1}, "history: must be at least 0"),
        (2, {"portions_per_worker": 0}, "portions_per_worker: must be at least 1"),
        (2, {"push_every": 0}, "push_every: must be at least 1"),
        (2, {"search": 0}, "search: must be at least 1"),
    ],
)
def test_what_cannot_run_is_refused_in_one_line(ranks, settings, text):
    with pytest.raises(ValueError, match=text) as caught:
        check(ranks, in_full(sandblaster, settings))
    assert "\n" not in str(caught.value)


def test_what_can_run_is_not():
    for ranks, servers in LAYOUTS:
        check(ranks, in_full(sandblaster, {"servers": servers}))


def test_a_scaled_loss_is_refused():
    def program(comm):
        mine = valley.session()
        mine.replica.loss_scale = 1024.0
        return sandblaster(comm, mine)

    with pytest.raises(ValueError, match="cannot scale"):
        in_process(1).run(program)
