"""Asynchronous training agrees with its papers, in any schedule, and goes on after the failure of a worker."""

from dataclasses import replace
from itertools import groupby

import numpy as np
import pytest
from contract import quadratic
from contract.asynchronous import Failing, Run, chosen, common
from contract.schedules import SCHEDULES, ranks_in

from hpcdl import registry
from hpcdl.fabric.comm import Counters, PeerLost
from hpcdl.fabric.network import NETWORKS, Link
from hpcdl.fabric.virtual.clocks import in_process, simulated
from hpcdl.optim.sgd import SGD
from hpcdl.training.parts.servers.messages import Request
from hpcdl.training.synchronous import synchronous


def random_numbers(random, ranks):
    """Return a random strategy with valid settings, and the number of workers."""
    dedicated = bool(ranks > 1 and random.integers(2))
    servers = int(random.integers(1, min(4, ranks)) if dedicated else random.integers(1, min(4, ranks) + 1))
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
    return {"name": name, "servers": servers, "dedicated": dedicated, **own[name]}, workers


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
    numbers = {"name": name, "collect": "all", "dedicated": dedicated}
    if name == "ssp":
        numbers |= {"bound": 0, "servers": servers}
    servers = numbers.get("servers", 1)
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
        random = np.random.default_rng(seed)
        ranks = ranks_in(seed)
        numbers, workers = random_numbers(random, ranks)
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
    numbers = {"servers": 2, "dedicated": True, "delay_compensation": "adaptive"}
    run = Run(in_process(5), numbers=numbers, size=10)
    kept = [{name: vector.size for name, vector in session.vectors.items()} for session in run.sessions]
    assert kept[:3] == [{"accrued": 10, "outgoing": 10}] * 3
    server = {"shard": 5, "copy": 5, "collected": 5, "backups": 15, "mean square": 5}
    assert kept[3:] == [server] * 2
    run = Run(in_process(2), numbers={"name": "downpour", "overlap": True}, size=10)
    assert set(run.sessions[1].vectors) == {"accrued", "outgoing", "incoming"}


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


def test_training_ends_if_a_server_fails():
    with pytest.raises(PeerLost, match=r"^rank 2 is gone: it kept a part of the parameters$"):
        Run(in_process(3), failure=(2, 1), numbers={"name": "downpour", "servers": 3})
