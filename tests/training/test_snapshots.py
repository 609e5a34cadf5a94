"""Copies of parameters, tested together after the end."""

import numpy as np
import pytest
from contract import bowl

from hpcdl.fabric.comm import Gauge
from hpcdl.fabric.inprocess import in_process
from hpcdl.trace.recorder import Evaluation, Recorder
from hpcdl.training.journal import Journal
from hpcdl.training.snapshots import Snapshots


def evaluated(taken, combine):
    """What each rank notes and gets back when it has ``taken`` (at ns, steps, vector, start)."""
    recorders = [Recorder(events=False) for _ in taken]
    sessions = []

    async def program(comm):
        clock = iter([0, *(ns for ns, *_ in taken[comm.rank])])
        journal = Journal(recorders[comm.rank], lambda: Gauge(next(clock), 0, 0, 0, 0))
        session = bowl.session(journal=journal)
        sessions.append(session)
        snapshots = Snapshots(session)
        for _, steps, vector, start in taken[comm.rank]:
            given = np.array(vector, float)
            snapshots.take(steps, given, start)
            given[:] = 99  # what was taken is a copy
        before = session.replica.parameters.copy()
        last = await snapshots.evaluate(comm, combine)
        assert np.array_equal(session.replica.parameters, before)
        return last

    last = in_process(len(taken)).run(program)
    assert all(np.array_equal(last[0], other) for other in last)
    notes = [recorder.evaluations for recorder in recorders]
    assert all(np.array_equal(notes[0], other, equal_nan=True) for other in notes)
    return last[0], [Evaluation(*row) for row in notes[0]], sessions


def loss(parameters):
    images = bowl.noise(5).test.batch(np.arange(5), "float64")[0].reshape(5, -1)
    return pytest.approx(((np.array(parameters) - images) ** 2).sum() / 2 / 5)


def test_parts_make_the_whole():
    """Of three servers, one with nothing; the last rank has no part. The moment is the last server's."""
    first, second = [1, 2, 3, 4, 5], [0, 5, 1, 2, 2]
    taken = [
        [(7_000, 2, first[:3], 0), (9_000, 4, second[:3], 0)],
        [(8_000, 2, first[3:], 3), (8_500, 4, second[3:], 3)],
        [(1_000, 2, [], 5), (2_000, 4, [], 5)],
        [],
    ]
    last, rows, _ = evaluated(taken, "sum")
    assert last.tolist() == second
    assert [(row.step, row.epoch, row.samples) for row in rows] == [
        (2, 2, 2 * bowl.IMAGES),
        (4, 4, 4 * bowl.IMAGES),
    ]
    assert [row.training_seconds for row in rows] == pytest.approx([8e-6, 9e-6])
    assert [row.loss for row in rows] == [loss(first), loss(second)]
    assert all(np.isnan(row.consensus) for row in rows)


def test_replicas_are_averaged_and_their_distance_noted():
    """(2, 0, ...) and (0, 0, ...) are 1 away from (1, 0, ...)."""
    last, rows, _ = evaluated([[(10, 3, [2, 0, 0, 0, 0], 0)], [(30, 3, [0] * 5, 0)]], "average")
    assert last.tolist() == [1, 0, 0, 0, 0]
    assert [(row.step, row.consensus, row.loss) for row in rows] == [(3, 1, loss(last))]
    assert rows[0].training_seconds == pytest.approx(30e-9)


def test_the_last_ones_belong_together():
    """Where an update of many gradients has taken a rank past two evaluations at once."""
    last, rows, _ = evaluated(
        [
            [(10, 1, [9, 9], 0), (20, 2, [1, 2], 0), (30, 3, [3, 4], 0)],
            [(20, 2, [5, 6, 7], 2), (30, 3, [7, 8, 9], 2)],
        ],
        "sum",
    )
    assert last.tolist() == [3, 4, 7, 8, 9]
    assert [row.step for row in rows] == [2, 3]


def test_a_later_one_after_as_many_steps_takes_the_place_of_the_one_before():
    taken = [[(10, 1, [1] * 5, 0), (20, 2, [2] * 5, 0), (30, 2, [3] * 5, 0)]]
    last, rows, _ = evaluated(taken, "sum")
    assert last.tolist() == [3] * 5
    assert [(row.step, row.loss) for row in rows] == [(1, loss([1] * 5)), (2, loss([3] * 5))]
