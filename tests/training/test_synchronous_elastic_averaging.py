"""Synchronous EASGD: the paper's equations, and evaluations of the centre."""

from functools import partial

import numpy as np
import pytest
from contract import tiny
from contract.tiny import PARAMETERS, RATE, loss_of_test, tiny_session

from hpcdl.optim.sgd import SGD, Nesterov
from hpcdl.trace.recorder import Recorder
from hpcdl.training.elastic_averaging import synchronous_elastic_averaging

train = partial(tiny.train, synchronous_elastic_averaging)


def found(sessions):
    """Return the workers' parameters (ranks, n) and the centre (n,), which must be equal on all ranks."""
    centres = np.array([mine.vectors["centre"] for mine in sessions])
    assert np.abs(centres - centres[0]).max() < 1e-15
    return np.array([mine.replica.parameters for mine in sessions]), centres[0]


def simulated(ranks, steps, period, beta, momentum=0.0):
    """Return the workers' look-ahead parameters and the centre by equations (2) and (3), with ``momentum`` (5)."""
    mine = tiny_session()
    centre = mine.replica.parameters.copy()
    workers, velocities = np.array([centre] * ranks), np.zeros((ranks, PARAMETERS))
    for t in range(steps):
        pulls = beta / ranks * (workers - centre) * (t % period == 0)
        for rank, (x, v) in enumerate(zip(workers, velocities, strict=True)):
            v[:] = momentum * v - RATE * tiny.gradient(mine, t, rank, ranks, x + momentum * v)
        workers += velocities - pulls
        centre += pulls.sum(axis=0)
    return workers + momentum * velocities, centre


@pytest.mark.parametrize(("optimizer", "momentum"), [(SGD, 0), (lambda: Nesterov(momentum=0.9), 0.9)])
@pytest.mark.parametrize(("period", "beta"), [(1, 0.9), (1, 0.4), (3, 0.9)])
@pytest.mark.parametrize("ranks", [1, 2, 5, 8])
def test_it_is_the_papers_equations(ranks, period, beta, optimizer, momentum):
    workers, centre = found(train(ranks, optimizer=optimizer, keys={"steps": 7}, period=period, beta=beta))
    expected_workers, expected_centre = simulated(ranks, 7, period, beta, momentum)
    np.testing.assert_allclose(workers, expected_workers, rtol=0, atol=1e-13)
    np.testing.assert_allclose(centre, expected_centre, rtol=0, atol=1e-13)
    assert np.abs(workers - centre).max() > 1e-6


def test_the_centre_is_evaluated_and_the_workers_do_not_change():
    recorders = [Recorder(events=False) for _ in range(3)]
    keys = {"steps": 6, "evaluate_every": 1.0}
    workers, centre = found(train(3, recorders=recorders, keys=keys))
    np.testing.assert_allclose(workers, simulated(3, 6, 1, 0.9)[0], rtol=0, atol=1e-13)
    assert [row.step for row in recorders[0].evaluations] == [2, 4, 6]
    last = tiny_session(start=centre)
    assert recorders[0].evaluations[-1].loss == pytest.approx(loss_of_test(last))
