"""Asynchronous training agrees with its papers, on any number of ranks, in any schedule."""

from copy import deepcopy
from dataclasses import replace
from functools import cache
from itertools import groupby, pairwise

import numpy as np
import pytest
from contract import quadratic, training
from contract.schedules import SCHEDULES, ranks_in

from hpcdl import registry
from hpcdl.data.parts.sharding import EQUAL, Shares
from hpcdl.fabric.comm import Counters, PeerLost
from hpcdl.fabric.faults import RankFailed
from hpcdl.fabric.network import NETWORKS, Link
from hpcdl.fabric.virtual.inprocess import in_process
from hpcdl.fabric.virtual.simulated import simulated
from hpcdl.nn.backend import backend
from hpcdl.nn.layers.batch_norm import BatchNorm
from hpcdl.nn.layers.flatten import Flatten
from hpcdl.nn.layers.linear import Linear
from hpcdl.nn.replica import Replica
from hpcdl.optim.adagrad import Adagrad
from hpcdl.optim.adam import Adam
from hpcdl.optim.rmsprop import RMSProp
from hpcdl.optim.sgd import SGD
from hpcdl.registry import in_full
from hpcdl.trace.recorder import Recorder, Update
from hpcdl.training.asynchronous import asynchronous, check, title
from hpcdl.training.parts.asynchronous.messages import Request
from hpcdl.training.parts.asynchronous.server import AdaptiveStrength, DelayCompensation
from hpcdl.training.synchronous import synchronous


class Run:
    """Asynchronous training of all ranks in this process."""

    def __init__(
        self, world, make=quadratic.session, strategy=asynchronous, failure=None, numbers=None, **settings
    ):
        self.recorders = [Recorder(events=False) for _ in range(world.ranks)]
        self.sessions = [
            make(recorder=recorder, **self._may_fail(failure, rank), **settings)
            for rank, recorder in enumerate(self.recorders)
        ]
        world.run(lambda comm: strategy(comm, self.sessions[comm.rank], **numbers or {}))
        assert not [post for group in world.groups for box in group.mailboxes.values() for post in box.posts()]

    @staticmethod
    def _may_fail(failure, rank):
        """Return session settings of a rank that fails before a step if ``failure`` is (rank, step)."""

        def before_step(step):
            if (rank, step) == failure:
                raise RankFailed

        return {"before_step": before_step} if failure else {}

    @property
    def parameters(self):
        """Parameters, which must be equal on all ranks."""
        first, *others = (session.replica.parameters for session in self.sessions)
        assert all(np.array_equal(first, other) for other in others)
        return first

    def updates(self, rank=0):
        return [Update(*row) for row in self.recorders[rank].updates]

    @property
    def images(self):
        return sum(row.images for recorder in self.recorders for row in recorder.steps)


def random_numbers(random, ranks, **fixed):
    """Return random valid settings, and the number of workers."""
    dedicated = bool(ranks > 1 and random.integers(2))
    servers = int(random.integers(1, min(4, ranks)) if dedicated else random.integers(1, min(4, ranks) + 1))
    workers = ranks - servers if dedicated else ranks
    n_fetch, n_push = (int(random.choice([1, 1, 2, 3])) for _ in range(2))
    bound = None if random.integers(2) else int(n_fetch + n_push - 2 + random.integers(3))
    numbers = {
        "collect": "all" if not random.integers(4) else int(random.integers(1, workers + 1)),
        "bound": bound,
        "n_fetch": n_fetch,
        "n_push": n_push,
        "overlap": bool(bound is None and random.integers(2)),
        "servers": servers,
        "dedicated": dedicated,
        "warm_start": int(random.choice([0, 0, 2, 100])),
        **fixed,
    }
    check(ranks, in_full(asynchronous, numbers))
    return numbers, workers


# BSP


@pytest.mark.sampled
@pytest.mark.parametrize("servers", [1, 2, 3, 5])
@pytest.mark.parametrize("dedicated", [False, True])
@pytest.mark.parametrize("workers", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_all_gradients_and_bound_0_is_synchronous_to_the_last_bit(workers, servers, dedicated, dtype):
    """Gradients are summed in rank order; with momentum, decay, a falling rate and shards of 3, 2, 1 and 0."""
    if servers > workers and not dedicated:
        servers = workers
    settings = {"size": 3, "dtype": dtype, "optimizer": SGD(momentum=0.9, weight_decay=0.01), "global_batch": 40}
    copies = lambda **rest: quadratic.session(**rest | {"optimizer": deepcopy(rest["optimizer"])})
    native = registry.find("aggregation", "native")
    expected = Run(in_process(workers), copies, strategy=synchronous, aggregate=native, **settings).parameters
    numbers = {"collect": "all", "bound": 0, "servers": servers, "dedicated": dedicated}
    for seed in range(3):
        run = Run(in_process(workers + servers * dedicated, seed), copies, numbers=numbers, **settings)
        assert np.array_equal(run.parameters, expected)
        assert {update.staleness for update in run.updates(workers if dedicated else 0)} == {0}


def test_all_gradients_and_bound_0_is_synchronous_for_lenet5():
    make = lambda **rest: training.session("native", "float64", **rest)
    expected = Run(in_process(3), make, strategy=synchronous).parameters
    numbers = {"collect": 3, "bound": 0, "servers": 2, "dedicated": True}
    run = Run(in_process(5, 7), make, numbers=numbers)
    assert np.array_equal(run.parameters, expected)
    assert training.difference(run.parameters, "float64") < training.TOLERANCE["float64"]


# staleness


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize(("overlap", "under_way"), [(False, 1), (True, 2)])
@pytest.mark.parametrize(("workers", "collect"), [(30, 30), (30, 1), (12, 6), (12, 2), (7, 3), (4, 1), (1, 1)])
def test_mean_staleness_agrees_with_theory(workers, collect, overlap, under_way):
    """(W - 1) / collect if a worker waits for its fetch, (2 W - 1) / collect with overlap.

    With jitter and workers of different speed.
    """
    random = np.random.default_rng(collect)
    slowness = random.uniform(0.5, 2, workers + 1)
    world = simulated(
        workers + 1,
        NETWORKS["ethernet-10g"],
        compute=lambda rank, label: slowness[rank] * random.lognormal(-7) if label == "loss" else 0.0,
    )
    numbers = {"collect": collect, "dedicated": True, "overlap": overlap}
    run = Run(world, size=2, steps=200, global_batch=30, numbers=numbers)
    staleness = [update.staleness for update in run.updates(workers)]
    assert len(staleness) == 200 * workers
    assert np.mean(staleness) == pytest.approx((under_way * workers - 1) / collect, rel=0.02)


@cache
def batch_gradient(size, global_batch, clock, worker, workers, shares=EQUAL):
    """Return the number of images of a worker's share of one batch, and their sum."""
    images, _ = quadratic.session(size=size, global_batch=global_batch, shares=shares).inputs.batch(
        clock, worker, workers
    )
    return len(images), images.reshape(len(images), -1).sum(axis=0)


@pytest.mark.slow
def test_no_worker_is_further_ahead_than_the_bound():
    """In the traces of many schedules a worker at clock c has all updates of clocks <= c - s - 1.

    It also has all of its own updates.
    """
    furthest = {0: 0, 1: 0, 3: 0}
    for seed in SCHEDULES:
        workers, bound = 2 + seed % 5, [*furthest][seed % 3]
        run = Run(in_process(workers, seed), numbers={"bound": bound}, size=1, steps=4)
        updates = run.updates()
        done = np.zeros((len(updates) + 1, workers), int)  # by version and worker
        for version, update in enumerate(updates):
            assert update.version == version
            done[version + 1] = done[version]
            done[version + 1, update.worker] += 1
            seen, clock = done[version - update.staleness], done[version, update.worker]
            assert seen[update.worker] == clock
            assert seen.min() >= clock - bound
            furthest[bound] = max(furthest[bound], clock - seen.min())
    assert all(most == bound for bound, most in furthest.items())  # the bound is reached


@pytest.mark.slow
@pytest.mark.parametrize("servers", [1, 2])
def test_no_worker_is_further_ahead_than_the_bound_with_several_gradients_per_update(servers):
    """A gradient that waits for an update is in no parameters yet, not even its own worker's."""
    furthest, fewer = {0: 0, 1: 0, 2: 0}, 0
    for seed in SCHEDULES:
        workers, bound = 2 + seed % 6, [*furthest][seed % 3]
        collect = 2 + seed % (workers - 1)
        numbers = {"bound": bound, "collect": collect, "servers": servers}
        run = Run(in_process(workers, seed), numbers=numbers, size=2, steps=4)
        for server in range(servers):
            applied, clock = [np.zeros(workers, int)], np.zeros(workers, int)  # by version; by worker
            for version, together in groupby(run.updates(server), lambda update: update.version):
                assert version == len(applied) - 1
                rows, after = list(together), applied[-1].copy()
                for row in rows:
                    seen = applied[row.version - row.staleness]
                    assert seen.min() >= clock[row.worker] - bound
                    furthest[bound] = max(furthest[bound], clock[row.worker] - seen.min())
                    clock[row.worker] += 1
                    after[row.worker] += 1
                applied.append(after)
                fewer += len(rows) < collect
            assert applied[-1].sum() == 4 * workers
    assert all(most == bound for bound, most in furthest.items())
    assert fewer


@pytest.mark.slow
def test_no_schedule_deadlocks():
    """Run 2 to 16 ranks with random settings; no message and no mini-batch is left."""
    for seed in SCHEDULES:
        random = np.random.default_rng(seed)
        ranks = ranks_in(seed)
        numbers, workers = random_numbers(random, ranks)
        run = Run(in_process(ranks, seed), numbers=numbers, size=int(random.integers(1, 6)), steps=4)
        assert np.isfinite(run.parameters).all()
        assert len([row for recorder in run.recorders for row in recorder.steps]) == 4 * workers
        final = run.recorders[0].evaluations[-1]
        assert (final.step, final.samples) == (4, 4 * quadratic.IMAGES)


def loss_of(parameters):
    """Return the loss of the five test images."""
    images, _ = quadratic.noise(5).test.batch(np.arange(5), "float64")
    return ((parameters - images.reshape(5, -1)) ** 2).sum() / 2 / 5


@pytest.mark.parametrize("workers", [3, 4, 8])
def test_a_server_sends_an_answer_while_it_receives_the_next_request(workers):
    """On full-duplex links without waiting workers, an update takes the time of a gradient's bytes."""
    beta, size = 1e-3, 64
    link = Link(alpha=0.0, beta=beta)
    network = replace(NETWORKS["ethernet-10g"], link=link, gamma=0.0)
    shard = 8 * size * beta
    world = simulated(workers + 1, network, compute=lambda _rank, label: shard if label == "loss" else 0.0)

    def make(recorder, **settings):
        mine = quadratic.session(recorder=recorder, **settings)
        mine.journal.read = lambda: Counters(round(world.running.time * 1e9), 0, 0, 0, 0)
        return mine

    keys = {"size": size, "steps": 20, "global_batch": workers}
    run = Run(world, make, numbers={"dedicated": True}, **keys)
    times = [update.time for update in run.updates(workers)][workers:]
    mean = (times[-1] - times[0]) * 1e-9 / (len(times) - 1)
    request = len(Request._fields) * 8 * beta
    assert mean == pytest.approx(shard + request, rel=0.01)


# parameters recomputed from traces


PLAIN = lambda gradient, drift: gradient
STRENGTH = 0.5


def adaptive():
    """Return the correction of DC-ASGD-a, equations 10 and 14; m is a moving mean of g g from 0."""
    m = 0.0

    def correct(gradient, drift):
        nonlocal m
        m = 0.95 * m + 0.05 * gradient**2
        return gradient + STRENGTH / np.sqrt(m + 1e-7) * gradient**2 * drift

    return correct


CORRECTIONS = {
    "constant": lambda: lambda gradient, drift: gradient + STRENGTH * gradient**2 * drift,
    "adaptive": adaptive,
}


def replayed(
    run, rate, correct=PLAIN, *, n_fetch=1, adagrad=False, size=5, global_batch=quadratic.IMAGES, shares=EQUAL
):
    """Return the parameters of a training, recomputed from the updates and staleness in its trace.

    ``rate(batches, update)`` is that of one gradient, ``batches`` having been applied before its update. With
    ``n_fetch`` > 1 each gradient must be an update of its own.
    """
    workers = len(run.sessions)
    weights = shares.among(workers)
    history = [quadratic.QuadraticLoss(size, "float64").parameters]
    clocks, fetched, local = [0] * workers, [-1] * workers, [None] * workers
    squares, applied = 0.0, 0
    for version, together in groupby(run.updates(), lambda update: update.version):
        assert version == len(history) - 1
        gradients, rates, together_parts = [], [], 0
        for update in together:
            worker, base = update.worker, update.version - update.staleness
            if n_fetch == 1 or fetched[worker] != base:
                fetched[worker], local[worker] = base, history[base]
            rates.append(rate(applied, update))
            images, total = batch_gradient(size, global_batch, clocks[worker], worker, workers, shares)
            relative = images * workers / global_batch
            gradient = local[worker] - total / images
            local[worker] = local[worker] - rates[-1] * relative * gradient
            gradients.append(relative * correct(gradient, history[-1] - history[base]))
            clocks[worker] += 1
            together_parts += weights[worker]
        applied += together_parts
        squares += np.average(gradients, axis=0, weights=rates) ** 2 if adagrad else 0
        step = np.mean([own * gradient for own, gradient in zip(rates, gradients, strict=True)], axis=0)
        history.append(history[-1] - (step / np.sqrt(squares) if adagrad else step))
    return history[-1]


def assert_replayed(run, rate, shares=EQUAL, **keys):
    """Check the rates in the trace, and the parameters recomputed from it."""
    np.testing.assert_allclose(run.parameters, replayed(run, rate, shares=shares, **keys), rtol=1e-12)
    applied, weights = 0, shares.among(len(run.sessions))
    for _, together in groupby(run.updates(), lambda update: update.version):
        rows = list(together)
        assert [row.learning_rate for row in rows] == pytest.approx([rate(applied, row) for row in rows])
        applied += sum(weights[row.worker] for row in rows)
    assert max(update.staleness for update in run.updates()) > 0


RATES = {
    "none": lambda batches, update: quadratic.RATE / (1 + batches // 3),
    "staleness": lambda batches, update: quadratic.RATE / (1 + batches // 3) / max(1, update.staleness),
}


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("scale_rate", RATES)
@pytest.mark.parametrize(
    "numbers",
    [
        {},
        {"bound": 2},
        {"collect": 2},
        {"collect": 3},
        {"delay_compensation": "constant"},
        {"delay_compensation": "adaptive"},
        {"delay_compensation": "constant", "collect": 2},
    ],
    ids=str,
)
def test_the_trace_gives_the_parameters(numbers, scale_rate, seed):
    kind = numbers.get("delay_compensation")
    strength = {"strength": STRENGTH} if kind else {}
    run = Run(in_process(3, seed), numbers={"servers": 1, "scale_rate": scale_rate, **numbers, **strength})
    assert_replayed(run, RATES[scale_rate], correct=CORRECTIONS[kind]() if kind else PLAIN)
    assert run.images == 6 * quadratic.IMAGES


UNEQUAL = Shares(weights=(4, 1))
"""Shares of three workers: 32, 8 and 8 of 48 images."""


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(
    "numbers",
    [{}, {"bound": 1}, {"collect": 2}, {"delay_compensation": "adaptive", "strength": STRENGTH}],
    ids=str,
)
def test_the_trace_gives_the_parameters_with_unequal_shares(numbers, seed):
    """Every image has the same weight, and steps are counted in images; the last batch may be too large."""
    rate = lambda batches, update: quadratic.RATE / (1 + min(batches // 6, 5))
    run = Run(in_process(3, seed), shares=UNEQUAL, numbers=numbers)
    correct = CORRECTIONS["adaptive"]() if "strength" in numbers else PLAIN
    assert_replayed(run, rate, shares=UNEQUAL, correct=correct)
    assert 6 * quadratic.IMAGES <= run.images < 6 * quadratic.IMAGES + 32
    assert [(row.step, row.samples) for row in run.recorders[2].evaluations] == [(6, 6 * quadratic.IMAGES)]


@pytest.mark.parametrize("seed", range(5))
def test_all_gradients_and_bound_0_is_synchronous_with_unequal_shares(seed):
    native = registry.find("aggregation", "native")
    expected = Run(in_process(3), strategy=synchronous, aggregate=native, shares=UNEQUAL).parameters
    run = Run(in_process(4, seed), shares=UNEQUAL, numbers={"collect": "all", "bound": 0, "dedicated": True})
    assert np.array_equal(run.parameters, expected)
    whole = Run(in_process(1), strategy=synchronous, aggregate=native).parameters
    np.testing.assert_allclose(expected, whole, rtol=1e-12)


@pytest.mark.parametrize("seed", range(10))
def test_servers_agree_with_unequal_shares_and_a_failed_worker(seed):
    """Servers receive gradients in different orders and still have the same number of snapshots."""
    shares, numbers = Shares(weights=(1, 5, 2)), {"servers": 2, "dedicated": True}
    for failure in (None, (1, seed % 6)):
        run = Run(in_process(6, seed), shares=shares, failure=failure, numbers=numbers, evaluate_every=2)
        evaluations = run.recorders[0].evaluations
        assert [row.step for row in evaluations] == [2, 4, 6]
        assert evaluations[-1].loss == pytest.approx(loss_of(run.sessions[0].replica.parameters))


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("collect", [1, 2, 3])
@pytest.mark.parametrize("scale_rate", RATES)
def test_the_trace_gives_the_parameters_with_adagrad(scale_rate, collect, seed):
    """Adagrad divides by the gradients' size, so only a scaled rate has an effect, not scaled gradients."""
    make = lambda **rest: quadratic.session(optimizer=Adagrad(), **rest)
    run = Run(in_process(3, seed), make, numbers={"scale_rate": scale_rate, "collect": collect})
    assert_replayed(run, RATES[scale_rate], adagrad=True)


@pytest.mark.parametrize("optimizer", [Adagrad, Adam, RMSProp, SGD])
def test_any_optimizer_gets_the_mean_rate_of_its_gradients(optimizer):
    """Weight decay uses this rate too."""

    class Watched(optimizer):
        def update(self, parameters, gradients, learning_rate):
            rates.append(learning_rate)
            super().update(parameters, gradients, learning_rate)

    rates = []
    make = lambda **rest: quadratic.session(
        optimizer=Watched(weight_decay=0.1), learning_rate=lambda step: 0.25, **rest
    )
    run = Run(in_process(7, 5), make, numbers={"scale_rate": "staleness", "collect": 2, "dedicated": True})
    updates = run.updates(6)
    for version, rate in enumerate(rates):
        own = [max(1, update.staleness) for update in updates if update.version == version]
        assert rate == pytest.approx(np.mean([0.25 / age for age in own]))
    assert min(rates) < 0.1


@pytest.mark.sampled
@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("n_fetch", [2, 3])
@pytest.mark.parametrize("seed", range(5))
def test_between_fetches_a_worker_descends_by_its_own_gradients(workers, n_fetch, seed):
    """At the full rate: a server's update and a worker's own step both use the mean over one share."""
    run = Run(in_process(workers, seed), learning_rate=lambda step: 0.1, numbers={"n_fetch": n_fetch})
    assert_replayed(run, lambda batches, update: 0.1, n_fetch=n_fetch)


@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize(
    ("numbers", "optimizer"),
    [({"n_fetch": 3}, SGD), ({}, lambda: SGD(momentum=0.9, weight_decay=0.1))],
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


def downpour(n_fetch, n_push, overlap, steps, rate):
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
        parameters -= rate * gradient
        if fetched is not None and late:
            parameters = fetched.copy()
        if step % n_push == 0:
            server -= rate * accrued
            accrued[:] = 0
    return server - rate * accrued  # the worker pushes the rest at the end


@pytest.mark.sampled
@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("n_push", [1, 2, 3, 5])
@pytest.mark.parametrize("n_fetch", [1, 2, 3, 5])
def test_fetches_and_pushes_follow_the_papers_pseudo_code(n_fetch, n_push, overlap, servers):
    numbers = {"n_fetch": n_fetch, "n_push": n_push, "overlap": overlap, "servers": servers, "dedicated": True}
    rate = lambda step: 0.25
    run = Run(in_process(1 + servers, n_fetch), steps=11, learning_rate=rate, numbers=numbers)
    np.testing.assert_allclose(run.parameters, downpour(n_fetch, n_push, overlap, 11, 0.25), rtol=1e-12)


@pytest.mark.parametrize("settings", [{}, {"scale_rate": "staleness"}, {"warm_start": 4}, {"bound": 1}])
def test_with_one_worker_shards_do_not_change_the_result(settings):
    """Seven servers for five parameters: two shards are empty."""
    whole = Run(in_process(2), numbers={"dedicated": True, **settings}).parameters
    cut = Run(in_process(8), numbers={"servers": 7, "dedicated": True, **settings}).parameters
    assert np.array_equal(whole, cut)


def test_rates_of_a_shard_never_grow():
    """Adagrad on a shard: rate / sqrt(sum of squared gradients) for each parameter."""

    class Watched(Adagrad):
        def update(self, parameters, gradients, learning_rate):
            before = parameters.copy()
            super().update(parameters, gradients, learning_rate)
            moved = np.abs(gradients) > 1e-12
            rates.append(np.where(moved, (before - parameters) / np.where(moved, gradients, 1), rates[-1]))

    rates = [np.full(5, np.inf)]
    make = lambda **rest: quadratic.session(optimizer=Watched(), learning_rate=lambda step: 0.3, **rest)
    Run(in_process(5, 1), make, numbers={"dedicated": True})
    assert len(rates) == 1 + 6 * 4
    assert all((after <= before * (1 + 1e-9)).all() for before, after in pairwise(rates))
    assert len(set(rates[-1].round(9))) == 5


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("bound", [None, 0])
def test_in_a_warm_start_only_the_first_worker_trains(seed, bound):
    numbers = {"warm_start": 7, "collect": "all" if bound == 0 else 1, "bound": bound}
    run = Run(in_process(3, seed), numbers=numbers)
    updates = run.updates()
    assert [(update.worker, update.version, update.staleness) for update in updates[:7]] == [
        (0, version, 0) for version in range(7)
    ]
    assert {update.worker for update in updates[7:]} == {0, 1, 2}
    assert all(update.version - update.staleness >= 7 for update in updates if update.worker)
    assert len(updates) == 6 * 3


def test_delay_compensation_by_hand():
    """Correct the gradient (2, -1) of worker 1 from parameters (1, 1) to (1.5, 3)."""
    compensation = DelayCompensation([np.zeros(2) for _ in range(2)], lambda gradient: 0.1)
    compensation.remember(0, np.full(2, 99.0))
    compensation.remember(1, np.ones(2))
    gradient = np.array([2.0, -1.0])
    compensation.correct(1, gradient, np.array([1.5, 3.0]))
    np.testing.assert_allclose(gradient, [2 + 0.1 * 4 * 0.5, -1 + 0.1 * 1 * 2])


def test_adaptive_strength_by_hand():
    """2 / sqrt(m) with m = 0.05 g^2 at first, then 0.95 m + 0.05 g^2."""
    strength = AdaptiveStrength(np.zeros(2), 2.0)
    np.testing.assert_allclose(strength(np.array([2.0, 4.0])), 2 / np.sqrt([0.2, 0.8]), rtol=1e-6)
    np.testing.assert_allclose(strength(np.array([1.0, 0.0])), 2 / np.sqrt([0.95 * 0.2 + 0.05, 0.76]), rtol=1e-6)


# failures


@pytest.mark.slow
@pytest.mark.parametrize(
    "numbers",
    [
        {},
        {"collect": "all", "bound": 0},
        {"collect": 2, "n_push": 3, "n_fetch": 2},
        {"bound": 1, "servers": 2},
        {"overlap": True},
        {"warm_start": 5},
        {"warm_start": 5, "bound": 0},
    ],
    ids=str,
)
def test_other_workers_train_on_the_mini_batches_of_a_failed_worker(numbers):
    """All mini-batches are trained on, for failures of each worker before each step."""
    for seed in range(48):
        servers = numbers.get("servers", 1)
        failure = 0 if "warm_start" in numbers else seed % 4, seed // 4 % 6
        run = Run(in_process(4 + servers, seed), failure=failure, numbers={"dedicated": True, **numbers}, size=3)
        for server in range(4, 4 + servers):
            updates = run.updates(server)
            if numbers.get("n_push", 1) == 1:
                assert len(updates) == 6 * 4
            mine = [update for update in updates if update.worker == failure[0]]
            assert len(mine) <= failure[1]
        if failure[0]:
            assert run.recorders[0].evaluations[-1].samples == 6 * quadratic.IMAGES
        survivors = [session.replica.parameters for rank, session in enumerate(run.sessions) if rank != failure[0]]
        assert all(np.array_equal(survivors[0], other) for other in survivors)


class Failing:
    """A communicator whose rank fails when it begins its message number ``lasts`` + 1."""

    def __init__(self, comm, lasts):
        self.comm, self.lasts = comm, lasts

    def __getattr__(self, name):
        return getattr(self.comm, name)

    def _count(self):
        if self.lasts == 0:
            raise RankFailed
        self.lasts -= 1

    async def send(self, *arguments):
        self._count()
        await self.comm.send(*arguments)

    async def recv(self, *arguments):
        self._count()
        return await self.comm.recv(*arguments)


@pytest.mark.slow
@pytest.mark.parametrize(
    "numbers",
    [
        {},
        {"bound": 0},
        {"collect": "all", "bound": 0},
        {"collect": 2, "n_push": 2, "n_fetch": 2, "bound": 3},
        {"overlap": True},
        {"warm_start": 5},
        {"warm_start": 5, "bound": 0},
    ],
    ids=str,
)
@pytest.mark.parametrize("servers", [2, 3])
def test_a_worker_fails_between_messages_to_two_servers(numbers, servers):
    """No rank waits forever, and the servers' updates differ at most by the gradient under way."""
    workers, steps, partial_pushes = 3, 4, 0
    for seed in range(40):

        async def train(comm, session, lasts=seed, **numbers):
            await asynchronous(Failing(comm, lasts) if comm.rank == 0 else comm, session, **numbers)

        keys = {"servers": servers, "dedicated": True, **numbers}
        run = Run(in_process(workers + servers, seed), strategy=train, numbers=keys, steps=steps, size=7)
        updates = [run.updates(server) for server in range(workers, workers + servers)]
        pushes = [sum(one.worker == 0 for one in found) for found in updates]
        assert max(pushes) - min(pushes) <= 1
        partial_pushes += max(pushes) > min(pushes)
        if numbers.get("n_push", 1) == 1:
            assert len(updates[0]) == steps * workers
        survivors = [session.replica.parameters for session in run.sessions[1:]]
        assert all(np.array_equal(survivors[0], other) for other in survivors)
    assert partial_pushes


def test_training_ends_if_a_server_fails():
    with pytest.raises(PeerLost, match=r"^rank 2 is gone: it kept a part of the parameters$"):
        Run(in_process(3), failure=(2, 1), numbers={"servers": 3})


# memory, evaluations, settings


def test_memory_is_as_documented():
    """Two vectors for each worker, one more with overlap; a server's shard, its copy, gradients and backups."""
    numbers = {"servers": 2, "dedicated": True, "collect": 3, "delay_compensation": "adaptive"}
    run = Run(in_process(5), numbers=numbers, size=10)
    kept = [{name: vector.size for name, vector in session.vectors.items()} for session in run.sessions]
    assert kept[:3] == [{"accrued": 10, "outgoing": 10}] * 3
    server = {"shard": 5, "copy": 5, "collected": 15, "backups": 15, "mean square": 5}
    assert kept[3:] == [server] * 2
    run = Run(in_process(2), numbers={"overlap": True}, size=10)
    assert set(run.sessions[1].vectors) == {"accrued", "outgoing", "incoming"}


def test_evaluations_test_snapshots():
    """One evaluation per epoch applied, of all shards together; the last one tests the final parameters."""
    run = Run(in_process(4), evaluate_every=2, numbers={"servers": 3})
    for recorder in run.recorders:
        assert [(row.step, row.samples) for row in recorder.evaluations] == [
            (n, n * quadratic.IMAGES) for n in (2, 4, 6)
        ]
    assert run.recorders[0].evaluations[-1].loss == pytest.approx(loss_of(run.parameters))


def test_running_statistics_are_the_mean_over_the_workers():
    """Dedicated servers see no images; all ranks end with the workers' mean."""

    def states(ranks, dedicated):
        layers = lambda: [BatchNorm("norm"), Flatten("flatten"), Linear("fc", 10)]
        make = lambda **rest: training.session(
            "none",
            "float64",
            replica=Replica(layers(), (8, 8, 1), backend=backend("numpy"), dtype="float64", seed=1),
            **rest,
        )
        numbers = {"collect": "all", "bound": 0, "dedicated": dedicated}
        return [session.replica.state for session in Run(in_process(ranks), make, numbers=numbers).sessions]

    working, dedicated = states(2, dedicated=False), states(3, dedicated=True)
    assert len(dedicated) == 3
    for state in (*working, *dedicated):
        np.testing.assert_allclose(state, working[0], rtol=1e-12)


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ({}, "Downpour"),
        ({"collect": 4, "bound": 0}, "BSP"),
        ({"collect": "all", "bound": 0}, "BSP"),
        ({"collect": "all"}, "1-softsync"),
        ({"collect": 2}, "2-softsync"),
        ({"collect": 3}, "softsync collecting 3"),
        ({"bound": 3}, "SSP(3)"),
        ({"bound": 3, "collect": 2}, "SSP(3) collecting 2"),
        ({"delay_compensation": "constant"}, "DC-ASGD"),
        ({"delay_compensation": "adaptive", "n_push": 1}, "DC-ASGD-a"),
        ({"collect": 3, "dedicated": True}, "1-softsync"),
    ],
)
def test_the_title_is_the_literatures_name(numbers, expected):
    assert title(4, in_full(asynchronous, numbers)) == expected


@pytest.mark.parametrize(
    ("ranks", "numbers", "message"),
    [
        (4, {"collect": 5}, "collect: must be 1 to 4, the number of workers, or 'all', not 5"),
        (4, {"collect": 4, "dedicated": True}, "collect: must be 1 to 3"),
        (4, {"collect": "most"}, "collect: must be 'all', not 'most'"),
        (4, {"servers": 5}, "servers: 5 on 4 ranks, at most 4 fit"),
        (1, {"dedicated": True}, "servers: 1 dedicated on 1 ranks, at most 0 fit"),
        (4, {"servers": 0}, "servers: must be at least 1, not 0"),
        (4, {"n_push": 0}, "n_push: must be at least 1, not 0"),
        (4, {"warm_start": -1}, "warm_start: must be at least 0, not -1"),
        (4, {"bound": -1}, r"bound: must be at least n_fetch \+ n_push - 2 = 0, not -1"),
        (4, {"bound": 2, "n_fetch": 3, "n_push": 2}, "bound: .* = 3, not 2"),
        (4, {"bound": 2, "overlap": True}, "overlap: a worker that trains on old parameters cannot keep a bound"),
        (4, {"scale_rate": "yes"}, "scale_rate: must be 'none' or 'staleness', not 'yes'"),
        (4, {"delay_compensation": "some"}, "delay_compensation: must be 'none' or 'constant' or 'adaptive'"),
        (4, {"delay_compensation": "constant", "n_push": 2}, "delay_compensation: needs n_fetch = 1"),
        (4, {"strength": 0.1}, "strength: needs delay_compensation"),
    ],
)
def test_bad_settings_are_refused_in_one_line(ranks, numbers, message):
    with pytest.raises(ValueError, match=f"^{message}") as error:
        check(ranks, in_full(asynchronous, numbers))
    assert "\n" not in str(error.value)


def test_downpour_learns_the_digits():
    make = lambda **rest: training.session("none", "float32", optimizer=SGD(), **rest)
    rate = lambda step: 0.02
    run = Run(in_process(4), make, steps=140, global_batch=100, learning_rate=rate, numbers={"servers": 2})
    assert run.recorders[0].evaluations[-1].accuracy > 0.95
    mean = np.mean([update.staleness for update in run.updates()])
    assert mean == pytest.approx(3, rel=0.1)
