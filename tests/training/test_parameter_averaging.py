"""Local SGD and DiLoCo: equal to synchronous training with linear updates each step, to loops by hand, and to each other."""

from collections import Counter
from functools import partial

import numpy as np
import pytest
from contract import tiny
from contract.compression import planned
from contract.tiny import PARAMETERS, RATE, loss_of_test, tiny_session

from hpcdl.aggregation.none import none
from hpcdl.aggregation.ring import ring
from hpcdl.data.parts.sharding import EQUAL, Shares
from hpcdl.optim.adaptive import Adam, AdamW
from hpcdl.optim.parts.schedules import schedule
from hpcdl.optim.sgd import SGD, Nesterov
from hpcdl.trace.recorder import Recorder
from hpcdl.training.local_sgd import TRAITS, cut, diloco, parameter_averaging
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


@pytest.mark.parametrize("optimizer_state", ["kept", "averaged"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 7, 9])
@pytest.mark.parametrize("optimizer", LINEAR)
def test_averaging_every_step_equals_synchronous_training_for_linear_updates(optimizer, ranks, optimizer_state):
    """48 images on 5, 7 and 9 ranks are unequal shares."""
    (alone,) = train(1, synchronous, optimizer)
    found = train(ranks, parameter_averaging, optimizer, optimizer_state=optimizer_state)
    np.testing.assert_allclose(found, np.array([alone] * ranks), rtol=0, atol=1e-12)


def by_hand(ranks, steps, averaged_after, shares=EQUAL):
    """Return parameters of plain gradient descent on each share, averaged by images after the given steps."""
    sessions = [tiny_session(shares=shares) for _ in range(ranks)]
    consumed = np.zeros(ranks)
    for step in range(steps):
        for rank, mine in enumerate(sessions):
            x = mine.replica.parameters
            x -= RATE * tiny.gradient(mine, step, rank, ranks, x)
            consumed[rank] += mine.inputs.images_of(rank, ranks)
        if step + 1 in averaged_after:
            stacked = np.array([mine.replica.parameters for mine in sessions])
            average = np.average(stacked, axis=0, weights=consumed)
            for mine in sessions:
                mine.replica.parameters[:] = average
            consumed[:] = 0
    return average


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
def test_averages_are_weighted_by_images(ranks, settings, averaged_after, weights):
    shares = Shares(weights=weights)
    expected = by_hand(ranks, 10, averaged_after, shares)
    sessions = tiny.train(parameter_averaging, ranks, keys={"steps": 10, "shares": shares}, **settings)
    for mine in sessions:
        np.testing.assert_allclose(mine.replica.parameters, expected, rtol=0, atol=1e-13)


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
        check_session = tiny_session(start=by_hand(ranks, 1, {1}))
        assert first.loss == pytest.approx(loss_of_test(check_session), rel=1e-12)


def test_without_aggregation_replicas_differ_and_are_not_scaled():
    """``aggregation = "none"`` is the no-communication baseline: the weights do not scale the parameters."""
    keys = {"aggregate": none, "independent": True}
    one, other = train(2, parameter_averaging, keys=keys, period=2)
    assert np.abs(one - other).max() > 1e-3
    assert np.abs(one).max() > 0.1


PLAIN = {"outer_optimizer": "sgd", "outer_rate": 1.0, "outer_momentum": 0.0}
"""An outer step of this kind goes to the average of the parameters."""


@pytest.mark.parametrize("ranks", [2, 3, 5])
@pytest.mark.parametrize("optimizer", [SGD, partial(Nesterov, momentum=0.9), AdamW])
def test_an_outer_step_of_rate_1_is_an_average(optimizer, ranks):
    """Three ranks share 5:2:1. Evaluations test theta, which outer steps alone change."""
    keys = {"steps": 12, "evaluate_every": 0.5}
    keys |= {"shares": Shares(weights=(5, 2, 1))} if ranks == 3 else {}
    found, rows = [], []
    for strategy, settings in ((parameter_averaging, {}), (diloco, PLAIN)):
        recorders = [Recorder(events=False) for _ in range(ranks)]
        found.append(train(ranks, strategy, optimizer, recorders=recorders, keys=keys, period=4, **settings))
        rows.append([(row.loss, row.accuracy) for row in recorders[0].evaluations])
    np.testing.assert_allclose(found[1], found[0], rtol=0, atol=1e-12)
    np.testing.assert_allclose(rows[1][3::4], rows[0][3::4], rtol=0, atol=1e-12)
    assert [len(set(rows[1][begin:end])) for begin, end in ((0, 3), (3, 7), (7, 11))] == [1] * 3
    assert len(set(rows[1])) == 4


def outer_by_hand(ranks, steps, period, fragments, delay, rate=0.7, momentum=0.9):
    """Return the parameters of all ranks; the outer step is Nesterov's in PyTorch's form, with a constant rate."""
    sessions = [tiny_session() for _ in range(ranks)]
    weights = np.array([[mine.inputs.images_of(rank, ranks) / 48] for rank, mine in enumerate(sessions)])
    x = np.array([mine.replica.parameters for mine in sessions])
    theta, velocity, waiting = x[0].copy(), np.zeros(PARAMETERS), {}
    for step in range(1, steps + 1):
        for rank, mine in enumerate(sessions):
            x[rank] -= RATE * tiny.gradient(mine, step - 1, rank, ranks, x[rank].copy())
        for k in range(1, fragments + 1):
            part = slice(PARAMETERS * (k - 1) // fragments, PARAMETERS * k // fragments)
            begun = k * period // fragments
            if step >= begun and (step - begun) % period == 0:
                waiting[step + delay, k] = (weights * (theta[part] - x[:, part])).sum(axis=0)
            if (step, k) in waiting:
                delta = waiting[step, k]
                velocity[part] = momentum * velocity[part] + delta
                theta[part] -= rate * (delta + momentum * velocity[part])
                x[:, part] = (x[:, part] + theta[part]) / 2 if delay else theta[part]
    return x


@pytest.mark.parametrize(
    ("ranks", "period", "fragments", "delay"),
    [(2, 4, 1, 0), (3, 5, 1, 2), (3, 6, 2, 0), (2, 7, 3, 1), (5, 6, 4, 5), (1, 3, 1, 0)],
)
def test_nesterovs_outer_step_is_that_of_a_loop_by_hand(ranks, period, fragments, delay):
    settings = {"period": period, "fragments": fragments, "delay": delay}
    found = tiny.parameters(tiny.train(diloco, ranks, keys={"steps": 23}, **settings))
    np.testing.assert_allclose(found, outer_by_hand(ranks, 23, **settings), rtol=0, atol=1e-12)


class Recorded(SGD):
    """Inner optimizer of torchft's test: all gradients are 2; keeps the first and the last parameter of each step."""

    def __init__(self):
        super().__init__()
        self.history = []

    def update(self, parameters, gradients, learning_rate):
        self.history.append(parameters[[0, -1]].tolist())
        parameters -= learning_rate * 2


TORCHFT = {
    0: (
        [1, -1, -3, -11, -13, -15, -17, -19, -21, -35, -37, -39, -41, -43, -45, -59],
        [1, -1, -3, -5, -7, -9, -23, -25, -27, -29, -31, -33, -47, -49, -51, -53],
    ),
    1: (
        [1, -1, -3, -6, -8, -10, -12, -14, -16, -21.5, -23.5, -25.5, -27.5, -29.5, -31.5, -35.75],
        [1, -1, -3, -5, -7, -9, -15, -17, -19, -21, -23, -25, -29, -31, -33, -35],
    ),
}
"""By the delay, parameters of both fragments before each step: torchft 7eb70878, test_diloco_mocked_updates 0 and 4."""


@pytest.mark.parametrize("delay", TORCHFT)
def test_fragments_have_the_parameters_of_torchft(delay):
    """Rates 1 and 2. torchft's sum begins ``delay`` steps earlier than hpcdl's: its step 0 is our step ``delay``."""
    inner = [Recorded(), Recorded()]
    making = iter(inner)
    keys = {"steps": 16 + delay, "learning_rate": lambda step: float(step >= delay)}
    settings = {"period": 6, "fragments": 2, "delay": delay, **PLAIN, "outer_rate": 2.0}
    tiny.train(diloco, 2, optimizer=lambda: next(making), own=np.ones((2, PARAMETERS)), keys=keys, **settings)
    for rank in inner:
        np.testing.assert_allclose(np.transpose(rank.history[delay:]), TORCHFT[delay], rtol=1e-12)


@pytest.mark.parametrize(("fragments", "delay"), [(1, 0), (1, 3), (4, 0), (4, 5)])
def test_bytes_a_step_are_those_of_the_parameters_by_the_period(fragments, delay):
    """And by the fragments at a time: a sum begins when the one before has ended."""
    sums, under_way = [], Counter()

    async def recorded(comm, vector):
        assert not under_way[comm.rank]
        under_way[comm.rank] += 1
        await ring(comm, vector)
        under_way[comm.rank] -= 1
        sums.append(vector.nbytes)

    keys = {"steps": 24, "aggregate": recorded}
    sessions = tiny.train(diloco, 3, keys=keys, period=6, fragments=fragments, delay=delay)
    assert sum(sums) == 3 * PARAMETERS * 8 * 24 // 6
    assert max(sums) == -(-PARAMETERS // fragments) * 8
    # parameters, gradients, theta, delta and the velocity
    assert {mine.memory_bytes for mine in sessions} == {5 * PARAMETERS * 8}


@pytest.mark.parametrize(
    ("compressor", "scheme", "own"),
    [("top_k", "allgather", {"density": 0.2}), ("power_sgd", "ring", {"rank": 1}), ("one_bit", "allgather", {})],
)
def test_what_is_not_sent_of_a_change_is_kept(compressor, scheme, own):
    """After one outer step of rate 1: theta less the sum of residuals is theta of dense sums."""
    plan = planned(compressor, scheme, **own)
    dense = tiny.parameters(tiny.train(diloco, 3, keys={"steps": 5}, period=5, **PLAIN))
    sessions = tiny.train(diloco, 3, keys={"steps": 5, "compression": plan}, period=5, **PLAIN)
    sent = tiny.parameters(sessions)
    assert np.ptp(sent, axis=0).max() == 0
    kept = sum(mine.compressed.residual for mine in sessions)
    assert np.abs(kept).max() > 1e-9
    np.testing.assert_allclose(sent[0] - kept, dense[0], rtol=0, atol=1e-12)


def test_fragments_between_tensors_may_be_fewer_and_compressors_of_gradients_alone_are_refused():
    mine = tiny_session(compression=planned("power_sgd", "ring", rank=1))
    assert [fragment.span for fragment in cut(mine, 5, partial(SGD))] == [slice(0, 12), slice(12, 15)]
    for name in ("dgc", "sign"):
        message = f"(?i)^'diloco' cannot use {name}, which sends signs alone or has a momentum"
        with pytest.raises(ValueError, match=message):
            TRAITS["diloco"].check_compression(planned(name, "allgather"), {})
