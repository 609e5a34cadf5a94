"""Asynchronous training agrees with its papers, in any schedule, compressed, and after the failure of a worker."""

from dataclasses import replace
from itertools import groupby, product

import numpy as np
import pytest
from contract import quadratic
from contract.asynchronous import Failing, Run, chosen, common
from contract.compression import COMPRESSORS, planned
from contract.schedules import SCHEDULES, ranks_in

from hpcdl import registry
from hpcdl.fabric.comm import Counters, PeerLost
from hpcdl.fabric.network import NETWORKS, Link
from hpcdl.fabric.virtual.clocks import in_process, simulated
from hpcdl.optim.sgd import SGD
from hpcdl.training.parts.server_client import Request
from hpcdl.training.synchronous import synchronous


@pytest.mark.parametrize("servers", [1, 2, 3, 5])
@pytest.mark.parametrize("dedicated", [False, True])
@pytest.mark.parametrize("workers", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["ssp", "m_synchronous"])
def test_an_update_of_all_gradients_is_synchronous_to_the_last_bit(name, workers, servers, dedicated, dtype):
    """Gradients are summed in rank order; with momentum, decay, a falling rate and shards of 3, 2, 1 and 0."""
    if servers > workers and not dedicated:
        servers = workers
    settings = {"size": 3, "dtype": dtype, "optimizer": SGD(momentum=0.9, weight_decay=0.01), "global_batch": 40}
    native = registry.find("aggregation", "native")
    expected = Run(in_process(workers), strategy=synchronous, aggregate=native, **settings).parameters
    own = {"bound": 0, "servers": servers} if name == "ssp" else {}
    numbers, servers = {"name": name, "collect": "all", "dedicated": dedicated, **own}, own.get("servers", 1)
    for seed in range(3):
        run = Run(in_process(workers + servers * dedicated, seed), numbers=numbers, **settings)
        assert np.array_equal(run.parameters, expected)
        assert {update.staleness for update in run.updates(workers if dedicated else 0)} == {0}


@pytest.mark.slow
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(("workers", "collect"), [(30, 30), (30, 1), (12, 6), (12, 2), (7, 3), (4, 1), (1, 1)])
def test_mean_staleness_agrees_with_theory(workers, collect, overlap):
    """(W - 1) / collect if a worker waits for its fetch, 2 W - 1 with Downpour's overlap.

    With jitter and workers of different speed.
    """
    random = np.random.default_rng(collect)
    slowness = random.uniform(0.5, 2, workers + 1)
    world = simulated(
        workers + 1,
        NETWORKS["ethernet-10g"],
        compute=lambda rank, label: slowness[rank] * random.lognormal(-7) if label == "loss" else 0.0,
    )
    own = {"name": "downpour", "overlap": True} if overlap else {"name": "softsync", "collect": collect}
    numbers, expected = {**own, "dedicated": True}, 2 * workers - 1 if overlap else (workers - 1) / collect
    run = Run(world, size=2, steps=200, global_batch=30, numbers=numbers)
    staleness = [update.staleness for update in run.updates(workers)]
    assert len(staleness) == 200 * workers
    assert np.mean(staleness) == pytest.approx(expected, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("servers", [1, 2])
def test_no_worker_is_further_ahead_than_the_bound_with_several_gradients_per_update(servers):
    """A gradient that waits for an update is in no parameters yet, not even its own worker's."""
    furthest, fewer = {0: 0, 1: 0, 2: 0}, 0
    for seed in SCHEDULES:
        workers, bound = 2 + seed % 6, [*furthest][seed % 3]
        collect = 2 + seed % (workers - 1)
        numbers = {"name": "ssp", "bound": bound, "collect": collect, "servers": servers}
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
        random, ranks = np.random.default_rng(seed), ranks_in(seed)
        dedicated = bool(ranks > 1 and random.integers(2))
        servers = int(random.integers(1, min(4, ranks) + (not dedicated)))
        workers = ranks - servers if dedicated else ranks
        collect = {"collect": "all" if not random.integers(4) else int(random.integers(1, workers + 1))}
        own = {
            "softsync": collect,
            "ssp": {**collect, "bound": int(random.integers(3))},
            "downpour": {
                **{name: int(random.choice([1, 1, 2, 3])) for name in ("n_fetch", "n_push")},
                "overlap": bool(random.integers(2)),
                "warm_start": int(random.choice([0, 0, 2, 100])),
            },
        }
        name = str(random.choice(list(own)))
        numbers = {"name": name, "servers": servers, "dedicated": dedicated, **own[name]}
        run = Run(in_process(ranks, seed), numbers=numbers, size=int(random.integers(1, 6)), steps=4)
        assert np.isfinite(run.parameters).all()
        assert len([row for recorder in run.recorders for row in recorder.steps]) == 4 * workers
        final = run.recorders[0].evaluations[-1]
        assert (final.step, final.samples) == (4, 4 * quadratic.IMAGES)


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


def test_memory_is_as_documented():
    """Two vectors for each worker, one more with overlap; a server's shard, its copy, gradients and backups."""

    def kept(ranks, **numbers):
        sessions = Run(in_process(ranks), numbers=numbers, size=10).sessions
        return [{name: vector.size for name, vector in session.vectors.items()} for session in sessions]

    server = {"shard": 5, "copy": 5, "collected": 5, "backups": 15, "mean square": 5}
    found = kept(5, servers=2, dedicated=True, delay_compensation="adaptive")
    assert found == [{"accrued": 10, "outgoing": 10}] * 3 + [server] * 2
    assert kept(2, name="downpour", overlap=True)[1].keys() == {"accrued", "outgoing", "incoming"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "numbers",
    [
        {},
        {"name": "ssp", "bound": 0},
        {"name": "ssp", "collect": "all", "bound": 0},
        {"name": "downpour", "n_push": 2, "n_fetch": 2},
        {"name": "downpour", "overlap": True},
        {"name": "downpour", "warm_start": 5},
    ],
    ids=str,
)
@pytest.mark.parametrize("servers", [2, 3])
def test_a_worker_fails_between_messages_to_two_servers(numbers, servers):
    """No rank waits forever, and the servers' updates differ at most by the gradient under way."""
    workers, steps, partial_pushes = 3, 4, 0
    for seed in range(40):
        strategy = chosen(workers + servers, {"servers": servers, "dedicated": True, **numbers})

        async def train(comm, session, lasts=seed, strategy=strategy):
            await strategy(Failing(comm, lasts) if comm.rank == 0 else comm, session)

        run = Run(in_process(workers + servers, seed), strategy=train, steps=steps, size=7)
        updates = [run.updates(server) for server in range(workers, workers + servers)]
        pushes = [sum(one.worker == 0 for one in found) for found in updates]
        assert max(pushes) - min(pushes) <= 1
        partial_pushes += max(pushes) > min(pushes)
        if numbers.get("n_push", 1) == 1:
            assert len(updates[0]) == steps * workers
        common(run.sessions[1:])
    assert partial_pushes


RATE = 0.25
MESSAGES = [name for name in COMPRESSORS if name != "power_sgd"]
BSP = {"name": "ssp", "collect": "all", "bound": 0}
DOWNPOUR = {"name": "downpour", "overlap": True}
ORDERED = [
    (1, {**DOWNPOUR, "servers": 3, "dedicated": True, "n_fetch": 3, "n_push": 2}),
    (1, {"servers": 1, "delay_compensation": "adaptive"}),
    (2, {**BSP, "servers": 2}),
    (3, {**BSP, "servers": 1}),
    (5, {**BSP, "servers": 3, "dedicated": True}),
]
"""Workers and settings whose results do not depend on the schedule."""
KINDS = [(2, {}), (3, {"servers": 3}), (5, {**DOWNPOUR, "servers": 2, "dedicated": True, "n_push": 3})]
KINDS += [(5, {"name": "downpour", "n_fetch": 2}), (7, {"name": "ssp", "bound": 1})]
"""Ranks and settings of several kinds of asynchronous training."""


class Accrued(quadratic.QuadraticLoss):
    """A quadratic loss that sums the gradients of its mini-batches."""

    def __init__(self, size, dtype):
        super().__init__(size, dtype)
        self.total = np.zeros(size, dtype)

    def loss(self, images, labels, scale):
        trains = not self.tests
        found = super().loss(images, labels, scale)
        if trains:
            self.total += self.gradients
        return found


class CompressedRun(Run):
    """Training with servers whose messages ``chosen`` compresses; None: they are dense."""

    def __init__(self, ranks, chosen, numbers, seed=0, size=5, dtype="float64", **settings):
        def make(**rest):
            return quadratic.session(size, dtype, replica=Accrued(size, dtype), compression=chosen, **rest)

        self.world = in_process(ranks, seed)
        super().__init__(self.world, make, numbers=numbers, **settings)

    @property
    def gradients(self):
        return sum(len(recorder.steps) for recorder in self.recorders)


def few(name, **settings):
    """Return the plan of a compressor that sends some of 5 or 29 elements, and keeps the rest."""
    density = {"density": 0.3} if name in ("top_k", "threshold", "dgc", "random_k") else {}
    keeps = {"momentum": 0.0} if name == "dgc" else {"error_feedback": True}
    return planned(name, "ring", **density, **keeps, **settings)


def test_lossless_messages_change_no_bit():
    """Shards of 2, 1 and 0 elements."""
    for workers, numbers in ORDERED:
        ranks = workers + numbers["servers"] * numbers.get("dedicated", False)
        for seed in range(2):
            dense = CompressedRun(ranks, None, numbers, seed, size=4)
            for code in ("words", "rice"):
                everything = planned("top_k", "ring", density=1.0, code=code)
                sparse = CompressedRun(ranks, everything, numbers, seed, size=4)
                assert np.array_equal(sparse.parameters, dense.parameters)
                assert not np.any([one.compressed.residual for one in sparse.sessions[:workers]])


@pytest.mark.parametrize(("ranks", "numbers"), KINDS, ids=str)
@pytest.mark.parametrize("name", MESSAGES)
def test_sent_and_residual_are_the_gradients(name, ranks, numbers):
    """Every update subtracts rate x workers x (the decoded gradient)."""
    chosen = few(name)
    workers = ranks - numbers.get("servers", 1) * numbers.get("dedicated", False)
    dtype, most = ("float32", 1e-4) if chosen.traits.rounds_values else ("float64", 1e-9)
    rate = lambda _step: RATE / workers
    run = CompressedRun(ranks, chosen, numbers, seed=ranks, size=29, dtype=dtype, learning_rate=rate)
    residual = sum(
        one.compressed.state["accumulated"] if name == "dgc" else one.compressed.residual
        for one in run.sessions[:workers]
    )
    accrued = sum(one.replica.total for one in run.sessions)
    sent = (np.linspace(-1, 1, 29) - run.parameters) / RATE
    np.testing.assert_allclose(sent + residual, accrued, rtol=most, atol=most)
    assert run.gradients == 6 * workers


def test_dense_first_exchanges_are_counted():
    numbers = {**BSP, "servers": 2, "dedicated": True}
    dense = CompressedRun(5, None, numbers, size=801)
    for name, warmup in product(MESSAGES, (0, 2)):
        small = CompressedRun(5, few(name, warmup_steps=warmup), numbers, size=801)
        assert sum(dense.world.bytes) > sum(small.world.bytes)
        codec = small.sessions[0].compressed.codec_of_values(0)  # answers to dense pushes count, too
        answers = sum(map(codec.bound, (slice(0, 401), slice(401, 801)))) if codec else 801 * 8
        sent = sum(session.compressed.warmup_bytes for session in small.sessions)
        assert sent == warmup * 3 * (801 * 8 + answers)


def test_parameters_of_servers_are_not_rounded():
    """Even with a residual of gradients: the server's own vector is the exact sum of its updates."""
    numbers = {"servers": 1, "dedicated": True}
    dense = CompressedRun(2, None, numbers, size=801, dtype="float32")
    narrow = CompressedRun(2, planned("fp16", "ring", error_feedback=True), numbers, size=801, dtype="float32")
    found = narrow.parameters
    assert (found.astype(np.float16) != found).mean() > 0.9
    np.testing.assert_allclose(found, dense.parameters, atol=2e-3)


@pytest.mark.parametrize("name", ["top_k", "fp16", "one_bit"])
@pytest.mark.parametrize("seed", range(3))
def test_the_others_train_on_when_a_worker_fails_and_not_when_a_server_does(name, seed):
    numbers = {"name": "downpour", "servers": 2, "n_push": 2}
    run = CompressedRun(5, few(name), numbers, seed, failure=(3, 2))
    common([one for rank, one in enumerate(run.sessions) if rank != 3])
    assert run.gradients >= 30
    with pytest.raises(PeerLost, match=r"^rank 1 is gone: it kept a part of the parameters$"):
        Run(in_process(3, seed), failure=(1, 1), numbers=numbers)
