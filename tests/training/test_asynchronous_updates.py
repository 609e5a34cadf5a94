"""Parameters of asynchronous training are those recomputed from its trace and by its papers' rules."""

from itertools import groupby

import numpy as np
import pytest
from contract import quadratic, training
from contract.asynchronous import Run, batch_gradient, loss_of
from contract.schedules import SCHEDULES

from hpcdl import registry
from hpcdl.data.parts.sharding import EQUAL, Shares
from hpcdl.fabric.network import NETWORKS
from hpcdl.fabric.virtual.clocks import in_process, simulated
from hpcdl.nn.backend import backend
from hpcdl.nn.layers import Flatten, Linear
from hpcdl.nn.replica import Replica
from hpcdl.optim.adaptive import Adagrad, Adam, RMSProp
from hpcdl.optim.sgd import SGD
from hpcdl.training.synchronous import synchronous


def correction(kind):
    """Return DC-ASGD's of strength 0.5; of DC-ASGD-a by equations 10 and 14, where m is a moving mean of g g from 0."""
    m = 0.0

    def correct(gradient, drift):
        nonlocal m
        m = 0.95 * m + 0.05 * gradient**2
        strength = {None: 0, "constant": 0.5, "adaptive": 0.5 / np.sqrt(m + 1e-7)}[kind]
        return gradient + strength * gradient**2 * drift

    return correct


def assert_replayed(run, rate, compensated=None, *, n_fetch=1, shares=EQUAL):
    """Check the rates in the trace, and the parameters, recomputed from the updates and staleness in it.

    ``rate(batches, update)`` is that of one gradient, ``batches`` having been applied before its update. With
    ``n_fetch`` > 1 each gradient must be an update of its own.
    """
    workers, correct = len(run.sessions), correction(compensated)
    weights = shares.among(workers)
    history = [quadratic.QuadraticLoss(5, "float64").parameters]
    clocks, fetched, local = [0] * workers, [-1] * workers, [None] * workers
    applied = 0
    for version, together in groupby(run.updates(), lambda update: update.version):
        assert version == len(history) - 1
        steps, together_parts = [], 0
        for update in together:
            worker, base = update.worker, update.version - update.staleness
            if n_fetch == 1 or fetched[worker] != base:
                fetched[worker], local[worker] = base, history[base]
            own = rate(applied, update)
            assert update.learning_rate == pytest.approx(own)
            images, total = batch_gradient(5, quadratic.IMAGES, clocks[worker], worker, workers, shares)
            relative = images * workers / quadratic.IMAGES
            gradient = local[worker] - total / images
            local[worker] = local[worker] - own * relative * gradient
            steps.append(own * relative * correct(gradient, history[-1] - history[base]))
            clocks[worker] += 1
            together_parts += weights[worker]
        applied += together_parts
        history.append(history[-1] - np.mean(steps, axis=0))
    np.testing.assert_allclose(run.parameters, history[-1], rtol=1e-12)
    assert max(update.staleness for update in run.updates()) > 0


UNEQUAL = Shares(weights=(4, 1))
"""Shares of three workers: 32, 8 and 8 of 48 images."""


@pytest.mark.parametrize("seed", range(7))
@pytest.mark.parametrize("shares", [EQUAL, UNEQUAL], ids=str)
@pytest.mark.parametrize(
    "numbers",
    [
        {},
        {"name": "ssp", "bound": 2},
        {"name": "softsync", "collect": 1, "scale_rate": "staleness"},
        *({"name": "softsync", "collect": 2, "scale_rate": scale_rate} for scale_rate in ("none", "staleness")),
        *({"delay_compensation": kind, "strength": 0.5} for kind in ("constant", "adaptive")),
    ],
    ids=str,
)
def test_the_trace_gives_the_parameters(numbers, shares, seed):
    """Every image has the same weight, and steps are counted in images; the last batch may be too large."""

    def rate(batches, update):
        age = max(1, update.staleness) if numbers.get("scale_rate") == "staleness" else 1
        return quadratic.RATE / (1 + min(batches // sum(shares.among(3)), 5)) / age

    run = Run(in_process(3, seed), shares=shares, numbers=numbers)
    assert_replayed(run, rate, shares=shares, compensated=numbers.get("delay_compensation"))
    assert 6 * quadratic.IMAGES <= run.images < 6 * quadratic.IMAGES + (1 if shares is EQUAL else 32)
    assert [(row.step, row.samples) for row in run.recorders[2].evaluations] == [(6, 6 * quadratic.IMAGES)]


@pytest.mark.parametrize("seed", range(6))
def test_servers_agree_with_unequal_shares_and_a_failed_worker(seed):
    """Servers receive gradients in different orders and still have the same number of snapshots."""
    shares, numbers = Shares(weights=(1, 5, 2)), {"servers": 2, "dedicated": True}
    for failure in (None, (1, seed % 6)):
        run = Run(in_process(6, seed), shares=shares, failure=failure, numbers=numbers, evaluate_every=2)
        evaluations = run.recorders[0].evaluations
        assert [row.step for row in evaluations] == [2, 4, 6]
        assert evaluations[-1].loss == pytest.approx(loss_of(run.sessions[0].replica.parameters))


@pytest.mark.parametrize("optimizer", [Adagrad, Adam, RMSProp, SGD])
def test_any_optimizer_gets_the_mean_rate_of_its_gradients(optimizer):
    """Weight decay uses this rate too."""

    class Watched(optimizer):
        def update(self, parameters, gradients, learning_rate):
            rates.append(learning_rate)
            super().update(parameters, gradients, learning_rate)

    rates, numbers = [], {"name": "softsync", "collect": 2, "scale_rate": "staleness", "dedicated": True}
    keys = {"optimizer": Watched(weight_decay=0.1), "learning_rate": lambda _step: 0.25}
    run = Run(in_process(7, 5), numbers=numbers, **keys)
    updates = run.updates(6)
    for version, rate in enumerate(rates):
        own = [max(1, update.staleness) for update in updates if update.version == version]
        assert rate == pytest.approx(np.mean([0.25 / age for age in own]))
    assert min(rates) < 0.1


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "numbers",
    [
        *({"name": "downpour", "n_fetch": n_fetch} for n_fetch in (2, 3)),
        *({"name": "ssp", "push": "updates", "bound": 2, "collect": collect} for collect in (1, 2)),
    ],
    ids=str,
)
def test_own_steps_between_fetches_and_pushed_updates_have_the_full_rate(numbers, seed):
    """A server's update and a worker's own step both use the mean over one share."""
    run = Run(in_process(3, seed), learning_rate=lambda step: 0.1, numbers=numbers)
    assert_replayed(run, lambda batches, update: 0.1, n_fetch=numbers.get("n_fetch", 1))


@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize(
    ("numbers", "optimizer"),
    [({"name": "downpour", "n_fetch": 3}, SGD), ({}, lambda: SGD(momentum=0.9, weight_decay=0.1))],
    ids=["own steps", "shards"],
)
def test_shards_and_own_steps_have_the_models_rates(numbers, optimizer, servers):
    """Biases have twice the rate and no decay; one worker equals synchronous training."""

    def make(**rest):
        layers = [Flatten("flatten"), Linear("fc", 10, rates=(1, 2))]
        replica = Replica(layers, (8, 8, 1), backend=backend("numpy"), dtype="float64", seed=1)
        keys = {"optimizer": optimizer(), "replica": replica, "learning_rate": lambda _step: 0.05}
        return training.session("native", "float64", **keys, **rest)

    expected = Run(in_process(1), make, strategy=synchronous).parameters
    found = Run(in_process(1 + servers), make, numbers={"servers": servers, "dedicated": True, **numbers})
    np.testing.assert_allclose(found.parameters, expected, rtol=1e-9, atol=1e-12)


def downpour(n_fetch, n_push, overlap, steps, rate, local=1.0):
    """Return parameters by algorithm 7.1 of Dean et al. 2012 with one replica and gradient descent on the server.

    What a fetch brings is there at once, or at the end of the step that it was started in; the first is waited for.
    """
    server = quadratic.QuadraticLoss(5, "float64").parameters.copy()
    parameters, accrued = server.copy(), np.zeros(5)
    for step in range(steps):
        fetched = server.copy() if step % n_fetch == 0 else None
        late = overlap and step > 0
        if fetched is not None and not late:
            parameters = fetched.copy()
        images, total = batch_gradient(5, quadratic.IMAGES, step, 0, 1)
        gradient = (images * parameters - total) / images
        accrued += gradient
        parameters -= local * rate * gradient
        if fetched is not None and late:
            parameters = fetched.copy()
        if step % n_push == 0:
            server -= rate * accrued
            accrued[:] = 0
    return server - rate * accrued  # the worker pushes the rest at the end


@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("n_push", [1, 2, 3, 5])
@pytest.mark.parametrize("n_fetch", [1, 2, 3, 5])
def test_fetches_and_pushes_follow_the_papers_pseudo_code(n_fetch, n_push, overlap, servers):
    """Workers may have a rate of their own between fetches."""
    for local in (1.0, 0.5, 0.0)[: 3 if overlap or n_fetch > 1 else 1]:
        numbers = {"n_fetch": n_fetch, "n_push": n_push, "overlap": overlap, "local_rate": local}
        numbers |= {"name": "downpour", "servers": servers, "dedicated": True}
        run = Run(in_process(1 + servers, n_fetch), steps=11, learning_rate=lambda step: 0.25, numbers=numbers)
        expected = downpour(n_fetch, n_push, overlap, 11, 0.25, local)
        np.testing.assert_allclose(run.parameters, expected, rtol=1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_in_a_warm_start_only_the_first_worker_trains(seed):
    run = Run(in_process(3, seed), numbers={"name": "downpour", "warm_start": 7})
    updates = run.updates()
    first = [(update.worker, update.version, update.staleness) for update in updates[:7]]
    assert first == [(0, version, 0) for version in range(7)]
    assert {update.worker for update in updates[7:]} == {0, 1, 2}
    assert all(update.version - update.staleness >= 7 for update in updates if update.worker)
    assert len(updates) == 6 * 3


def test_no_gradient_of_older_parameters_is_applied_in_any_schedule():
    """Each update has m gradients of different workers, the last ones perhaps fewer; none is lost."""
    for seed in SCHEDULES:
        workers = 2 + seed % 6
        collect = 1 + seed // 6 % workers
        failure = (workers - 1, 1 + seed % 3) if seed % 4 == 0 else None
        numbers = {"name": "m_synchronous", "collect": collect}
        run = Run(in_process(workers, seed), numbers=numbers, failure=failure)
        updates = run.updates()
        assert {update.staleness for update in updates} == {0}
        together = [[row.worker for row in rows] for _, rows in groupby(updates, lambda update: update.version)]
        assert all(len(set(group)) == len(group) <= collect for group in together)
        if failure is None:
            assert {len(group) for group in together[:-workers]} <= {collect}
            assert len(updates) == 6 * workers
            assert run.recorders[0].evaluations[-1].samples == 6 * quadratic.IMAGES


def test_a_slow_worker_delays_nothing_and_its_gradients_are_discarded():
    """Two of three workers: steps take the time of their gradients, and each has the mean of their two."""
    slowness = (1.0, 1.0, 5.5, 0.0)
    world = simulated(4, NETWORKS["ethernet-10g"], compute=lambda rank, label: slowness[rank] * (label == "loss"))
    run = Run(world, numbers={"name": "m_synchronous", "collect": 2, "dedicated": True})
    expected = quadratic.QuadraticLoss(5, "float64").parameters
    for clock in range(9):  # 6 x 3 mini-batches, two in each update
        gradients = []
        for worker in range(2):
            images, total = batch_gradient(5, quadratic.IMAGES, clock, worker, 3)
            gradients.append(expected - total / images)
        expected = expected - quadratic.RATE / (1 + 2 * clock // 3) * np.mean(gradients, axis=0)
    np.testing.assert_allclose(run.parameters, expected, rtol=1e-12)
    assert [row.worker for row in run.updates(3)] == [0, 1] * 9
    assert [len(recorder.steps) for recorder in run.recorders] == [9, 9, 2, 0]

    async def fields(comm):
        return await run.sessions[comm.rank].watched[0].fields(comm)

    assert in_process(4).run(fields) == [{"discarded_share": 2 / 20}] * 4


def test_with_momentum_each_worker_has_its_own_velocity():
    """One worker is momentum SGD on one rank; three workers are not, and their velocities differ."""
    settings = {"optimizer": SGD(momentum=0.9), "learning_rate": lambda _step: 0.1}
    numbers = {"name": "ssp", "bound": 9, "push": "updates"}
    native = registry.find("aggregation", "native")
    alone = Run(in_process(1), strategy=synchronous, aggregate=native, **settings)
    one = Run(in_process(2), numbers={**numbers, "dedicated": True}, **settings)
    np.testing.assert_allclose(one.parameters, alone.parameters, rtol=1e-12)
    pushed, usual = (
        Run(in_process(3, 1), numbers={**numbers, "collect": 2, "push": push}, **settings)
        for push in ("updates", "gradients")
    )
    assert np.abs(pushed.parameters - usual.parameters).max() > 1e-3
    velocities = [session.optimizer.state["velocity"] for session in pushed.sessions]
    assert np.abs(velocities[0] - velocities[1]).max() > 1e-3
