"""The session and the journal: evaluations by all ranks together, snapshots, memory, rows of the record."""

import math
from functools import partial

import numpy as np
import pytest
from contract import quadratic, tiny, training
from contract.asynchronous import loss_of
from contract.compression import planned
from contract.tiny import PARAMETERS, tiny_session
from contract.training import digits, normalised, session

from hpcdl import registry
from hpcdl.fabric.comm import Counters
from hpcdl.fabric.virtual.clocks import in_process
from hpcdl.nn.kernels.numpy.activation_pool import _POOL
from hpcdl.optim.sgd import SGD
from hpcdl.trace.recorder import Evaluation, Recorder, Step
from hpcdl.training.ad_psgd import ad_psgd
from hpcdl.training.elastic_averaging import elastic_averaging
from hpcdl.training.local_sgd import parameter_averaging
from hpcdl.training.parameter_servers import asynchronous, ssp
from hpcdl.training.parts.journal import Journal
from hpcdl.training.parts.plan import MessageCodec
from hpcdl.training.parts.session import test_share as share_of_test
from hpcdl.training.parts.snapshots import Snapshots
from hpcdl.training.parts.traits import Strategy
from hpcdl.training.update_broadcast import update_broadcast


def test_evaluations_are_due_every_so_many_epochs_and_at_the_end():
    for every, steps, expected in [
        (1.0, 30, [11, 22, 30]),
        (1.0, 22, [11, 22]),
        (0.5, 12, [6, 11, 12]),
        (2.0, 45, [22, 44, 45]),
        (1 / 11, 4, [1, 2, 3, 4]),
        (100.0, 7, [7]),
    ]:
        mine = session("none", "float32", steps=steps, evaluate_every=every)  # 11 steps an epoch
        assert [step for step in range(1, steps + 1) if mine.evaluation.due(step)] == expected


@pytest.mark.parametrize("independent", [False, True])
def test_running_statistics_are_averaged_unless_replicas_are_independent(independent):
    start = normalised().state.copy()

    async def program(comm):
        mine = session("none", "float64", replica=normalised(), independent=independent)
        mine.replica.state += comm.rank
        await mine.evaluation.test(comm, 1)
        return mine.replica.state

    for rank, state in enumerate(in_process(3).run(program)):
        np.testing.assert_allclose(state, start + (rank if independent else 1))


@pytest.mark.parametrize("ranks", [1, 2, 7, 400])
def test_all_ranks_together_evaluate_the_whole_test_set(ranks):
    """400 ranks are more than there are test images."""
    recorders = [Recorder() for _ in range(ranks)]
    replica = session("none", "float32").replica
    test = digits().test
    images, labels = test.batch(np.arange(len(test)), "float32")
    loss, right, _ = replica.loss(replica.predict(images), labels, 1.0)

    async def program(comm):
        mine = session("none", "float32", recorders[comm.rank], replica=replica)
        return await mine.evaluation.test(comm, 22)

    assert in_process(ranks).run(program) == [False] * ranks
    for recorder in recorders:
        (row,) = recorder.evaluations
        assert row.accuracy == right / len(test)
        assert row.loss == pytest.approx(loss / len(test), rel=1e-5)
        assert (row.epoch, row.samples) == (2, 22 * 120)


@pytest.mark.parametrize(("global_batch", "ranks"), [(60, 2), (61, 2), (7, 3), (2, 5)])
def test_evaluation_needs_no_more_memory_than_training(global_batch, ranks, monkeypatch):
    monkeypatch.setattr("hpcdl.training.parts.session.TEST_BYTES", 1)
    mine = session("none", "float32", global_batch=global_batch)
    sizes = []
    predict = mine.replica.predict
    monkeypatch.setattr(mine.replica, "predict", lambda images: sizes.append(len(images)) or predict(images))
    idle = _POOL.in_use()

    async def program(comm):
        return await mine.evaluation.test(comm, 1)

    in_process(1).run(program)
    assert sum(sizes) == len(digits().test)
    assert max(sizes) == global_batch
    sizes.clear()
    share_of_test(mine.replica, mine.inputs.dataset.test, (1, ranks), mine.global_batch, 0, None)
    assert max(sizes) == math.ceil(global_batch / ranks)
    assert _POOL.in_use() == idle


@pytest.mark.parametrize(
    ("name", "settings", "vectors"),
    [
        ("parameter_averaging", {}, [0, 0, 0]),
        ("d_psgd", {}, [2, 2, 2]),
        ("stochastic_gradient_push", {}, [3 + 3 / PARAMETERS] * 3),  # three weights, too
        ("ad_psgd", {}, [4, 4, 4]),
        ("update_broadcast", {}, [4, 4, 4]),
        ("synchronous_elastic_averaging", {}, [3, 3, 3]),
        ("elastic_averaging", {}, [3, 1, 1]),
        ("elastic_averaging", {"dedicated": True}, [2, 1, 1]),
    ],
)
def test_memory_is_as_documented(name, settings, vectors):
    """Parameters, gradients, and the strategy's own vectors on each rank."""
    sessions = tiny.train(registry.find("training", name), 3, **settings)
    assert [mine.memory_bytes / (PARAMETERS * 8) - 2 for mine in sessions] == pytest.approx(vectors)


@pytest.mark.parametrize(
    ("name", "settings"), [("d_psgd", {"consensus_step": 0.1}), ("update_broadcast", {}), ("asynchronous", {})]
)
def test_a_corrupt_message_names_its_sender(name, settings, monkeypatch):
    original = MessageCodec.decode

    def corrupted(self, span, message, sender, into):
        received = message.copy()
        if sender == 1 != self._rank:
            received[-1] ^= 8
        original(self, span, received, sender, into)

    monkeypatch.setattr(MessageCodec, "decode", corrupted)
    keys = {"compression": planned("top_k", "allgather")}
    with pytest.raises(ValueError, match="message of rank 1: corrupt"):
        tiny.train(registry.find("training", name), 3, keys=keys, **settings)


@pytest.mark.parametrize("name", registry.names("training"))
def test_a_strategy_stops_at_the_target_as_its_traits_declare(name):
    """If it is reached, and if the case is to stop there."""
    strategy, stops = registry.find("training", name), registry.traits("training", name, Strategy).stops_at_target
    for target, stop in ((0.0, True), (0.0, False), (1.0, True)):
        recorders = [Recorder(events=False) for _ in range(3)]
        keys = {"steps": 12, "evaluate_every": 1.0, "target_accuracy": target, "stop_at_target": stop}
        in_process(3).run(
            lambda comm, recorders=recorders, keys=keys: strategy(comm, tiny_session(recorders[comm.rank], **keys))
        )
        assert (len(recorders[0].evaluations) == 1) == (stops and stop and target == 0)


def new_journal(*readings, **options):
    recorder = Recorder(**options)
    return recorder, Journal(recorder, iter(readings).__next__)


def test_a_step_is_the_difference_of_two_readings():
    recorder, journal = new_journal(
        Counters(1000, 5, 50, 100, 40),
        Counters(4000, 7, 90, 600, 70),
        Counters(9000, 7, 90, 600, 70),
        Counters(9500, 8, 91, 601, 70),
    )
    with journal.step(epoch=2, learning_rate=0.5) as outcome:
        outcome.loss, outcome.correct, outcome.images = 1.25, 3, 4
    with journal.step():
        pass
    first, second = recorder.steps
    assert first == Step(0, 2, 1000, 4000, 1.25, 3, 4, 500, 2, 40, 0.5, 30)
    assert second[:4] == (1, 0, 9000, 9500)
    assert (second.correct, second.images, second.compute_ns, second.messages, second.bytes) == (0, 0, 1, 1, 1)
    assert second.input_ns == 0
    assert math.isnan(second.loss)  # the body set no loss
    journal.repetitions([(1, 2)], messages=1, size=8)
    assert math.isnan(recorder.steps[-1].loss)  # no training


def test_evaluations_count_only_the_time_of_steps():
    recorder, journal = new_journal(*(Counters(seconds * 10**9, 0, 0, 0, 0) for seconds in (0, 1, 8, 10)))
    rows = (1, 0.5, 1.0, 2.0, 0.25, 120), (2, 1.0, 3.0, 1.0, 0.75, 240)
    for _, epoch, _, loss, accuracy, samples in rows:
        with journal.step():
            pass
        journal.evaluation(epoch, loss, accuracy, samples)
    assert recorder.evaluations == [Evaluation(*row) for row in rows]


def test_simulated_ranks_share_the_limit_of_events_and_not_that_of_updates(monkeypatch):
    """One of 10 ranks may be the only server, which records all updates."""
    monkeypatch.setattr("hpcdl.trace.recorder.UPDATE_LIMIT", 20)
    recorder, journal = new_journal(limit=30)
    server = journal.virtual(lambda: Counters(0, 0, 0, 0, 0), 10)
    for version in range(25):
        server.update(1, version, 0, 0.5)
    (virtual,) = recorder.virtual
    assert (len(virtual.updates), virtual.dropped_updates, virtual.dropped) == (20, 5, 0)
    assert virtual.limit == 3


def evaluated(taken, combine):
    """Return last parameters and evaluations if each rank has ``taken`` (at ns, steps, vector, start)."""
    recorders = [Recorder(events=False) for _ in taken]

    async def program(comm):
        clock = iter([0, *(ns for ns, *_ in taken[comm.rank])])
        journal = Journal(recorders[comm.rank], lambda: Counters(next(clock), 0, 0, 0, 0))
        session = quadratic.session(journal=journal)
        snapshots = Snapshots(session)
        for _, steps, vector, start in taken[comm.rank]:
            given = np.array(vector, float)
            snapshots.take(steps, given, start)
            given[:] = 99  # a snapshot is a copy
        before = session.replica.parameters.copy()
        last = await snapshots.evaluate(comm, combine)
        assert np.array_equal(session.replica.parameters, before)
        return last

    last = in_process(len(taken)).run(program)
    assert all(np.array_equal(last[0], other) for other in last)
    notes = [recorder.evaluations for recorder in recorders]
    assert all(np.array_equal(notes[0], other, equal_nan=True) for other in notes)
    return last[0], notes[0]


def test_snapshots_of_servers_are_joined():
    """Three servers, one with an empty shard, and a rank without snapshots. The moment is the last server's.

    Ranks with more snapshots leave out the first ones: an update of many gradients may pass two evaluations at once.
    """
    first, second = [1, 2, 3, 4, 5], [0, 5, 1, 2, 2]
    taken = [
        [(6_000, 1, [9, 9, 9], 0), (7_000, 2, first[:3], 0), (9_000, 4, second[:3], 0)],
        [(8_000, 2, first[3:], 3), (8_500, 4, second[3:], 3)],
        [(1_000, 2, [], 5), (2_000, 4, [], 5)],
        [],
    ]
    last, rows = evaluated(taken, "sum")
    assert last.tolist() == second
    places = [(row.step, row.epoch, row.samples) for row in rows]
    assert places == [(steps, steps, steps * quadratic.IMAGES) for steps in (2, 4)]
    assert [row.training_seconds for row in rows] == pytest.approx([8e-6, 9e-6])
    assert [row.loss for row in rows] == pytest.approx([loss_of(first), loss_of(second)])
    assert all(np.isnan(row.consensus) for row in rows)


def test_snapshots_of_replicas_are_averaged_and_their_distance_is_recorded():
    """The distance of (2, 0, ...) and (0, 0, ...) from (1, 0, ...) is 1."""
    last, (row,) = evaluated([[(10, 3, [2, 0, 0, 0, 0], 0)], [(30, 3, [0] * 5, 0)]], "average")
    assert last.tolist() == [1, 0, 0, 0, 0]
    assert (row.step, row.consensus, row.loss) == (3, 1, pytest.approx(loss_of(last)))
    assert row.training_seconds == pytest.approx(30e-9)


def normalised_session(recorder=None, **settings):
    """Return a session of a network with running statistics."""
    defaults = {"replica": training.normalised(), "optimizer": SGD(), "learning_rate": lambda _step: 0.05}
    return training.session("ring", "float64", recorder, **defaults | settings)


def test_running_statistics_are_the_mean_over_the_workers():
    """Dedicated servers see no images; all ranks end with the workers' mean."""
    states = []
    for ranks, dedicated in [(2, False), (3, True)]:
        sessions = [normalised_session() for _ in range(ranks)]
        program = partial(ssp, collect="all", bound=0, dedicated=dedicated)
        in_process(ranks).run(lambda comm, sessions=sessions, program=program: program(comm, sessions[comm.rank]))
        states += [one.replica.state for one in sessions]
    np.testing.assert_allclose(states, [states[0]] * 5, rtol=1e-12)


@pytest.mark.parametrize(
    ("strategy", "ranks", "settings", "rate"),
    [
        (ad_psgd, 1, {}, 0.05),
        (update_broadcast, 1, {}, 0.05),
        (elastic_averaging, 1, {"period": 1}, 0.0),  # the centre lags behind, so only the statistics change here
        (elastic_averaging, 2, {"period": 1, "dedicated": True}, 0.0),
        (asynchronous, 1, {}, 0.05),
        (asynchronous, 2, {"dedicated": True}, 0.05),
        (ssp, 3, {"collect": "all", "bound": 0}, 0.05),
        (ssp, 5, {"collect": "all", "bound": 0, "dedicated": True, "servers": 2}, 0.05),
        (parameter_averaging, 3, {"period": 2}, 0.05),
    ],
)
def test_a_snapshot_has_the_loss_of_a_training_that_ends_there(strategy, ranks, settings, rate):
    """With batch normalisation, whose running statistics are copied too."""

    def losses(steps):
        recorder = Recorder(events=False)

        async def program(comm):
            every = 1 / (len(training.digits().train) // training.GLOBAL_BATCH)
            keys = {"steps": steps, "evaluate_every": every, "learning_rate": lambda _step: rate}
            await strategy(comm, normalised_session(None if comm.rank else recorder, **keys), **settings)

        in_process(ranks).run(program)
        return [row.loss for row in recorder.evaluations]

    whole = losses(5)
    assert len(set(whole)) == 5
    assert whole == pytest.approx([losses(steps)[-1] for steps in range(1, 6)], rel=1e-9)
