"""Elastic averaging, asynchronous and synchronous: the papers' equations, the sum of workers and centre."""

from functools import partial

import numpy as np
import pytest
from contract import tiny
from contract.schedules import SCHEDULES, ranks_in
from contract.tiny import PARAMETERS, RATE, loss_of_test, replicas, starts, tiny_session

from hpcdl.optim.sgd import SGD, Nesterov
from hpcdl.trace.recorder import Recorder
from hpcdl.training.elastic_averaging import elastic_averaging, synchronous_elastic_averaging

train = partial(tiny.train, elastic_averaging)


@pytest.mark.parametrize(("optimizer", "momentum"), [(SGD, 0), (lambda: Nesterov(momentum=0.99), 0.99)])
@pytest.mark.parametrize(("period", "moving_rate"), [(1, None), (1, 0.3), (4, 0.3)])
def test_one_worker_is_the_papers_algorithm(period, moving_rate, optimizer, momentum):
    """Compare with algorithms 1 (EASGD) and 2 (EAMSGD); the replica holds the look-ahead parameters."""
    (found,) = train(1, optimizer=optimizer, keys={"steps": 11}, period=period, moving_rate=moving_rate)
    rate, mine = 0.9 if moving_rate is None else moving_rate, tiny_session()
    x = mine.replica.parameters.copy()
    centre, v = x.copy(), 0 * x
    for t in range(11):
        gradient = tiny.gradient(mine, t, 0, 1, x + momentum * v)
        difference = rate * (x - centre) if t % period == 0 else 0
        v = momentum * v - RATE * gradient
        x = x - difference + v
        centre = centre + difference
    np.testing.assert_allclose(found.replica.parameters, x + momentum * v, rtol=0, atol=1e-13)
    np.testing.assert_allclose(found.vectors["centre"], centre, rtol=0, atol=1e-13)
    assert np.abs(x - centre).max() > 1e-6


@pytest.mark.slow
def test_exchanges_do_not_change_the_sum_of_workers_and_centre_in_any_schedule():
    """Without gradients the sum of all x and c stays, and the distances x - c shrink."""
    for seed in SCHEDULES:
        ranks, first = ranks_in(seed), int(seed % 4 > 1)  # a dedicated server has no x
        own = starts(ranks, seed)
        keys = {"steps": 6, "learning_rate": lambda _step: 0.0}
        choice = {"period": 1 + seed % 3, "moving_rate": 0.2, "dedicated": bool(first)}
        sessions = train(ranks, seed=seed, own=own, pool=replicas(16), keys=keys, **choice)
        centre = sessions[0].vectors["centre"]
        x = np.array([mine.replica.parameters for mine in sessions[first:]])
        np.testing.assert_allclose(x.sum(axis=0) + centre, own[first:].sum(axis=0) + own[0], rtol=0, atol=1e-12)
        assert np.linalg.norm(x - centre) < np.linalg.norm(own[first:] - own[0])


def test_the_default_moving_rate_is_0_9_divided_by_the_workers():
    keys = {"steps": 1, "learning_rate": lambda _step: 0.0}
    for dedicated, workers in ((False, 3), (True, 2)):
        own = starts(3)
        centre = train(3, own=own, keys=keys, period=1, dedicated=dedicated)[0].vectors["centre"]
        expected = train(3, own=own, keys=keys, period=1, dedicated=dedicated, moving_rate=0.9 / workers)
        assert np.array_equal(centre, expected[0].vectors["centre"])


@pytest.mark.parametrize("dedicated", [False, True])
@pytest.mark.parametrize("ranks", [2, 5])
def test_all_steps_are_made_and_the_centre_is_tested(ranks, dedicated):
    recorders = [Recorder(events=False) for _ in range(ranks)]
    workers = ranks - dedicated
    keys = {"steps": 12, "evaluate_every": 1.0, "global_batch": 48}
    sessions = train(ranks, recorders=recorders, keys=keys, period=2, dedicated=dedicated)
    assert sum(len(recorder.steps) for recorder in recorders) == 12 * workers
    assert bool(recorders[0].steps) != dedicated
    assert [row.step for row in recorders[0].evaluations] == [2, 4, 6, 8, 10, 12]
    last = tiny_session(start=sessions[0].vectors["centre"])
    assert recorders[-1].evaluations[-1].loss == pytest.approx(loss_of_test(last))


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
@pytest.mark.parametrize("choice", [{}, {"beta": 0.4}, {"period": 3}], ids=str)
@pytest.mark.parametrize("ranks", [1, 2, 5, 8])
def test_it_is_the_papers_equations(ranks, choice, optimizer, momentum):
    """All ranks have the same centre. Evaluations are of the centre, and change no worker."""
    recorders = [Recorder(events=False) for _ in range(ranks)]
    given = {"optimizer": optimizer, "recorders": recorders, "keys": {"steps": 7, "evaluate_every": 1.0}}
    sessions = tiny.train(synchronous_elastic_averaging, ranks, **given, **choice)
    workers, centre = simulated(ranks, 7, **{"period": 1, "beta": 0.9, **choice}, momentum=momentum)
    np.testing.assert_allclose(tiny.parameters(sessions), workers, rtol=0, atol=1e-13)
    centres = np.array([mine.vectors["centre"] for mine in sessions])
    np.testing.assert_allclose(centres, np.array([centre] * ranks), rtol=0, atol=1e-13)
    assert np.abs(centres - centres[0]).max() < 1e-15
    assert np.abs(workers - centre).max() > 1e-6
    assert [row.step for row in recorders[0].evaluations] == [2, 4, 6, 7]
    assert recorders[0].evaluations[-1].loss == pytest.approx(loss_of_test(tiny_session(start=centre)))
