"""DiLoCo beside parameter averaging, a loop by hand, and its stated bytes and memory."""

from functools import partial

import numpy as np
import pytest
from contract import tiny
from contract.compression import planned
from contract.tiny import PARAMETERS, RATE, tiny_session

from hpcdl.aggregation.ring import ring
from hpcdl.data.parts.sharding import Shares
from hpcdl.optim.adaptive import AdamW
from hpcdl.optim.sgd import SGD, Nesterov
from hpcdl.trace.recorder import Recorder
from hpcdl.training.diloco import TRAITS, cut, diloco
from hpcdl.training.parameter_averaging import parameter_averaging

PLAIN = {"outer_optimizer": "sgd", "outer_rate": 1.0, "outer_momentum": 0.0}
"""An outer step of this kind goes to the average of the parameters."""


def train(strategy, ranks, optimizer=SGD, *, keys=None, **settings):
    """Return the parameters of all ranks after 12 steps, and rank 0's evaluations."""
    recorders = [Recorder(events=False) for _ in range(ranks)]
    keys = {"steps": 12, "evaluate_every": 0.5, **(keys or {})}
    sessions = tiny.train(strategy, ranks, optimizer=optimizer, recorders=recorders, keys=keys, **settings)
    return tiny.parameters(sessions), [(row.loss, row.accuracy) for row in recorders[0].evaluations]


@pytest.mark.parametrize("ranks", [2, 3, 5])
@pytest.mark.parametrize("optimizer", [SGD, partial(Nesterov, momentum=0.9), AdamW])
def test_an_outer_step_of_rate_1_is_an_average(optimizer, ranks):
    """Three ranks share 5:2:1."""
    keys = {"shares": Shares(weights=(5, 2, 1))} if ranks == 3 else {}
    expected = train(parameter_averaging, ranks, optimizer, keys=keys, period=4)
    averaged = train(diloco, ranks, optimizer, keys=keys, period=4, **PLAIN)
    np.testing.assert_allclose(averaged[0], expected[0], rtol=0, atol=1e-12)
    np.testing.assert_allclose(averaged[1][3::4], expected[1][3::4], rtol=0, atol=1e-12)


def by_hand(ranks, steps, period, fragments, delay, rate=0.7, momentum=0.9):
    """Return the parameters of all ranks; the outer step is Nesterov's in PyTorch's form, with a constant rate."""
    sessions = [tiny_session() for _ in range(ranks)]
    weights = np.array([[mine.inputs.images_of(rank, ranks) / 48] for rank, mine in enumerate(sessions)])
    x = np.array([mine.replica.parameters for mine in sessions])
    theta, velocity, waiting = x[0].copy(), np.zeros(PARAMETERS), {}
    for step in range(1, steps + 1):
        for rank, mine in enumerate(sessions):
            x[rank] -= RATE * tiny.gradient(mine, step - 1, rank, ranks, x[rank].copy())
        for k in range(1, fragments + 1):
            part, begun = (
                slice(PARAMETERS * (k - 1) // fragments, PARAMETERS * k // fragments),
                k * period // fragments,
            )
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
    trained = tiny.parameters(tiny.train(diloco, ranks, keys={"steps": 23}, **settings))
    np.testing.assert_allclose(trained, by_hand(ranks, 23, **settings), rtol=0, atol=1e-12)


def test_evaluations_test_theta_which_outer_steps_alone_change():
    _, rows = train(diloco, 3, keys={"steps": 11}, period=4)
    assert [len(set(rows[begin:end])) for begin, end in ((0, 3), (3, 7), (7, 11))] == [1] * 3
    assert len(set(rows)) == 3


@pytest.mark.parametrize(("fragments", "delay"), [(1, 0), (1, 3), (4, 0), (4, 5)])
def test_bytes_a_step_are_those_of_the_parameters_by_the_period(fragments, delay):
    """And by the fragments at a time: a sum begins when the one before has ended."""
    sums, open_sums = [], []

    async def recorded(comm, vector):
        assert not open_sums or comm.rank
        open_sums.append(vector) if comm.rank == 0 else None
        await ring(comm, vector)
        if comm.rank == 0:
            sums.append(open_sums.pop().nbytes)

    keys = {"steps": 24, "aggregate": recorded}
    sessions = tiny.train(diloco, 3, keys=keys, period=6, fragments=fragments, delay=delay)
    assert sum(sums) == PARAMETERS * 8 * 24 // 6
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


def test_fragments_between_tensors_may_be_fewer():
    mine = tiny_session(compression=planned("power_sgd", "ring", rank=1))
    assert [fragment.span for fragment in cut(mine, 5, partial(SGD))] == [slice(0, 12), slice(12, 15)]


def test_compressors_of_gradients_alone_are_refused():
    for name in ("dgc", "sign"):
        with pytest.raises(ValueError, match=f"(?i)^{name} sends signs alone or has a momentum; 'diloco' sends "):
            TRAITS.check_compression(planned(name, "allgather"), {})
