"""Snapshots: copies of parameters, tested after training."""

from functools import partial

import numpy as np
import pytest
from contract import quadratic, training
from contract.asynchronous import loss_of

from hpcdl.fabric.comm import Counters
from hpcdl.fabric.virtual.clocks import in_process
from hpcdl.optim.sgd import SGD
from hpcdl.trace.recorder import Recorder
from hpcdl.training.ad_psgd import ad_psgd
from hpcdl.training.elastic_averaging import elastic_averaging
from hpcdl.training.local_sgd import parameter_averaging
from hpcdl.training.parameter_servers import asynchronous, ssp
from hpcdl.training.parts.journal import Journal
from hpcdl.training.parts.snapshots import Snapshots
from hpcdl.training.update_broadcast import update_broadcast


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


def test_replicas_are_averaged_and_their_distance_is_recorded():
    """The distance of (2, 0, ...) and (0, 0, ...) from (1, 0, ...) is 1."""
    last, rows = evaluated([[(10, 3, [2, 0, 0, 0, 0], 0)], [(30, 3, [0] * 5, 0)]], "average")
    assert last.tolist() == [1, 0, 0, 0, 0]
    assert [(row.step, row.consensus, row.loss) for row in rows] == [(3, 1, pytest.approx(loss_of(last)))]
    assert rows[0].training_seconds == pytest.approx(30e-9)


def normalised(recorder=None, **settings):
    """Return a session of a network with running statistics."""
    defaults = {"replica": training.normalised(), "optimizer": SGD(), "learning_rate": lambda _step: 0.05}
    return training.session("ring", "float64", recorder, **defaults | settings)


def test_running_statistics_are_the_mean_over_the_workers():
    """Dedicated servers see no images; all ranks end with the workers' mean."""
    sessions = []
    for ranks, dedicated in [(2, False), (3, True)]:
        mine = [normalised() for _ in range(ranks)]
        program = partial(ssp, collect="all", bound=0, dedicated=dedicated)
        in_process(ranks).run(lambda comm, mine=mine, program=program: program(comm, mine[comm.rank]))
        sessions += mine
    for session in sessions:
        np.testing.assert_allclose(session.replica.state, sessions[0].replica.state, rtol=1e-12)


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
            await strategy(comm, normalised(None if comm.rank else recorder, **keys), **settings)

        in_process(ranks).run(program)
        return [row.loss for row in recorder.evaluations]

    whole = losses(5)
    assert len(set(whole)) == 5
    assert whole == pytest.approx([losses(steps)[-1] for steps in range(1, 6)], rel=1e-9)
