"""Local SGD: with period 1 and linear updates it equals synchronous training, otherwise not."""

import numpy as np
import pytest
from contract import tiny
from contract.tiny import RATE, loss_of_test, tiny_session

from hpcdl.data.parts.sharding import EQUAL, Shares
from hpcdl.fabric.virtual.inprocess import in_process
from hpcdl.optim.adaptive import Adam
from hpcdl.optim.parts.schedules import schedule
from hpcdl.optim.sgd import SGD, Nesterov
from hpcdl.trace.recorder import Recorder
from hpcdl.training.parameter_averaging import parameter_averaging
from hpcdl.training.synchronous import synchronous

LINEAR = [
    SGD,
    lambda: SGD(weight_decay=0.1),
    lambda: SGD(momentum=0.9, weight_decay=0.01),
    lambda: Nesterov(momentum=0.9, weight_decay=0.01),
]


def train(ranks, strategy, optimizer=SGD, *, keys=None, **settings):
    """Return the parameters of all ranks."""
    keys = {"steps": 10, **(keys or {})}
    return tiny.parameters(tiny.train(strategy, ranks, optimizer=optimizer, keys=keys, **settings))


def distance_from_synchronous(ranks, optimizer, **settings):
    """Return the largest difference from synchronous training on one rank."""
    (alone,) = train(1, synchronous, optimizer)
    found = train(ranks, parameter_averaging, optimizer, **settings)
    return max(np.abs(mine - alone).max() for mine in found)


@pytest.mark.parametrize("optimizer_state", ["kept", "averaged"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 7, 9])
@pytest.mark.parametrize("optimizer", LINEAR)
def test_averaging_every_step_equals_synchronous_training_for_linear_updates(optimizer, ranks, optimizer_state):
    """48 images on 5, 7 and 9 ranks are unequal shares."""
    assert distance_from_synchronous(ranks, optimizer, optimizer_state=optimizer_state) < 1e-12


def by_hand(ranks, steps, averaged_after, shares=EQUAL):
    """Return parameters of plain gradient descent on each share, averaged by images after the given steps.

    And the root mean square distance of the replicas from all averages, by the averages' norm.
    """
    sessions = [tiny_session(shares=shares) for _ in range(ranks)]
    consumed, squares, norms = np.zeros(ranks), 0.0, 0.0
    for step in range(steps):
        for rank, mine in enumerate(sessions):
            x = mine.replica.parameters
            x -= RATE * tiny.gradient(mine, step, rank, ranks, x)
            consumed[rank] += mine.inputs.images_of(rank, ranks)
        if step + 1 in averaged_after:
            stacked = np.array([mine.replica.parameters for mine in sessions])
            average = np.average(stacked, axis=0, weights=consumed)
            squares += np.average(((stacked - average) ** 2).sum(axis=1), weights=consumed)
            norms += average @ average
            for mine in sessions:
                mine.replica.parameters[:] = average
            consumed[:] = 0
    return average, np.sqrt(squares / norms)


@pytest.mark.parametrize("weights", [(1,), (5, 1), (1, 3)])
@pytest.mark.parametrize("ranks", [2, 5, 7])
@pytest.mark.parametrize(
    ("settings", "averaged_after"),
    [
        ({"period": 3}, {3, 6, 9, 10}),  # the last step averages too
        ({"period": 100}, {10}),
        ({"period": 3, "local_from": 4}, {1, 2, 3, 4, 7, 10}),
    ],
)
def test_averages_are_weighted_by_images_and_the_drift_is_the_distance_from_them(
    ranks, settings, averaged_after, weights
):
    shares = Shares(weights=weights)
    expected, drift = by_hand(ranks, 10, averaged_after, shares)
    sessions = tiny.train(parameter_averaging, ranks, keys={"steps": 10, "shares": shares}, **settings)
    for mine in sessions:
        np.testing.assert_allclose(mine.replica.parameters, expected, rtol=0, atol=1e-13)
    fields = in_process(ranks).run(lambda comm: sessions[comm.rank].watched[0].fields(comm))
    assert fields == [{"replica_drift": pytest.approx(drift, rel=1e-6)}] * ranks


def test_post_local_begins_when_the_rate_first_falls():
    falling = schedule("step", factor=0.5, at=[0.4])
    keys = {"learning_rate": lambda step: 0.1 * falling(step, 10)}
    post = train(3, parameter_averaging, keys=keys, period=3, post_local=True)
    given = train(3, parameter_averaging, keys=keys, period=3, local_from=4)
    never = train(3, parameter_averaging, period=3, post_local=True)  # the rate is constant
    assert np.array_equal(post, given)
    assert np.array_equal(never, train(3, parameter_averaging))


def test_the_optimizer_state_is_kept_averaged_or_reset():
    """Read after the average that ends training."""
    for optimizer_state, equal, steps in [("kept", False, 10), ("averaged", True, 10), ("reset", True, 0)]:
        keys = {"steps": 10}
        choice = {"period": 5, "optimizer_state": optimizer_state}
        sessions = tiny.train(parameter_averaging, 3, optimizer=Adam, keys=keys, **choice)
        states = [mine.optimizer.state["mean_square"] for mine in sessions]
        assert all(np.array_equal(states[0], other) for other in states) == equal
        assert all(state.any() for state in states) == (optimizer_state != "reset")
        assert {mine.optimizer.steps for mine in sessions} == {steps}


def test_evaluations_test_the_average():
    """Between two averages an evaluation records the loss of the weighted average and the distance from it."""
    for ranks in [2, 5, 7]:
        recorders = [Recorder(events=False) for _ in range(ranks)]
        keys = {"steps": 3, "evaluate_every": 0.5}  # an epoch has two steps
        train(ranks, parameter_averaging, recorders=recorders, keys=keys, period=2)
        assert recorders[0].evaluations == recorders[-1].evaluations
        first, second, third = recorders[0].evaluations
        assert first.consensus > 1e-3
        assert np.isnan(second.consensus)
        assert np.isnan(third.consensus)
        check_session = tiny_session(start=by_hand(ranks, 1, {1})[0])
        assert first.loss == pytest.approx(loss_of_test(check_session), rel=1e-12)


def test_without_aggregation_replicas_differ_and_are_not_scaled():
    """``aggregation = "none"`` is the no-communication baseline: the weights do not scale the parameters."""
    keys = {"aggregate": _nothing, "independent": True}
    one, other = train(2, parameter_averaging, keys=keys, period=2)
    assert np.abs(one - other).max() > 1e-3
    assert np.abs(one).max() > 0.1


async def _nothing(_comm, _buffer):
    pass
