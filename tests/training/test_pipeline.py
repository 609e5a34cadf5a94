"""Pipelines train as the undivided network does; partition of layers into stages, and schedules."""

import itertools
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest
from contract.networks import with_classifiers
from contract.training import GLOBAL_BATCH, SEED, session

from hpcdl import registry
from hpcdl.cases.keys.step_spec import partition
from hpcdl.data.parts.sharding import EQUAL, Shares
from hpcdl.fabric.network import NETWORKS, Link
from hpcdl.fabric.virtual.clocks import in_process, simulated
from hpcdl.nn.backend import backend
from hpcdl.nn.kernels.numpy import activation_pool
from hpcdl.nn.layers import BatchNorm, Convolution, Flatten, Linear
from hpcdl.nn.replica import Replica
from hpcdl.trace.recorder import Recorder
from hpcdl.training.parts.mesh import Place, placed
from hpcdl.training.parts.sections import SCHEDULES, bubble_share, in_flight
from hpcdl.training.pipeline import pipeline
from hpcdl.training.synchronous import synchronous

STEPS = 20
TOLERANCE = 1e-10


@cache
def images():
    return registry.find("datasets", "synthetic")(shape=[8, 8, 1], classes=10, images=200, test_images=37)


def lenet5():
    return registry.find("models", "lenet5")(images().shape, images().classes)


plain = partial(with_classifiers, 10)


def normalised():
    return [
        Convolution("conv1", 4, 3),
        BatchNorm("norm1", relu=True),
        Convolution("conv2", 4, 3),
        BatchNorm("norm2", relu=True),
        Flatten("flat"),
        Linear("fc", 10),
    ]


async def run_stage(comm, layers, part, stages, recorder=None, dtype="float64", settings=None, **keys):
    """Train on one rank; return its replica."""
    replica = Replica(layers, images().shape, backend=backend("numpy"), dtype=dtype, seed=SEED, part=part)
    mine = session("ring", dtype, recorder, replica=replica, dataset=images(), **keys)
    mine.place = await placed(comm, stages)
    await pipeline(comm, mine, **settings)
    return replica


def train(network, ranks, stages, *, seed=0, microbatches=4, schedule="1f1b", bucket_bytes=None, **settings):
    """Return parameters and state of each pipeline's whole network, and the recorders of all ranks."""
    recorders = [Recorder(events=False) for _ in range(ranks)]
    layers = network()
    cuts = partition([1.0] * len(layers), stages, [1.0] * len(layers))

    async def program(comm):
        part, recorder = cuts[comm.rank % stages], recorders[comm.rank]
        own = {"microbatches": microbatches, "schedule": schedule, "bucket_bytes": bucket_bytes}
        replica = await run_stage(comm, layers, part, stages, recorder, settings=own, **settings)
        return replica.parameters, replica.state

    found = in_process(ranks, seed).run(program)
    whole = [
        tuple(np.concatenate(vectors) for vectors in zip(*found[first : first + stages], strict=True))
        for first in range(0, ranks, stages)
    ]
    return whole, recorders


@cache
def undivided(network, ranks, batch):
    """Return parameters and recorders of synchronous training."""
    recorders = [Recorder(events=False) for _ in range(ranks)]

    async def program(comm):
        replica = Replica(network(), images().shape, backend=backend("numpy"), dtype="float64", seed=SEED)
        keys = {"replica": replica, "dataset": images(), "steps": STEPS, "global_batch": batch}
        await synchronous(comm, session("ring", "float64", recorders[comm.rank], **keys))
        return replica.parameters

    return in_process(ranks).run(program)[0], recorders


BATCH = 42
"""Not divisible by 4 or 5."""


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("network", "ranks", "stages", "microbatches", "shares"),
    [
        *((plain, *sizes, EQUAL) for sizes in ((1, 1, 4), (2, 2, 4), (2, 2, 1), (3, 3, 5), (4, 4, 3), (4, 4, 7))),
        *((plain, *sizes, EQUAL) for sizes in ((4, 2, 3), (6, 3, 5), (9, 9, 2))),
        (lenet5, 4, 2, 4, Shares(weights=(3, 1))),
    ],
)
def test_training_equals_that_of_the_undivided_network(network, ranks, stages, microbatches, shares, schedule):
    """With dropout, and with auxiliary classifiers in several stages. Journals, too: the last stage counts its images."""
    expected, theirs = undivided(network, ranks // stages, BATCH)
    keys = {"steps": STEPS, "global_batch": BATCH, "shares": shares}
    found, recorders = train(network, ranks, stages, microbatches=microbatches, schedule=schedule, **keys)
    for parameters, _ in found:
        np.testing.assert_allclose(parameters, expected, rtol=0, atol=TOLERANCE)
    others = [row for rank, one in enumerate(recorders) if (rank + 1) % stages for row in one.steps]
    assert {row.images for row in others} <= {0}
    if shares is not EQUAL:
        return
    for recorder in recorders:
        (seen,), (wanted,) = recorder.evaluations, theirs[0].evaluations
        assert (seen.accuracy, seen.loss) == (wanted.accuracy, pytest.approx(wanted.loss, rel=1e-12))
    for one, last in zip(theirs, recorders[stages - 1 :: stages], strict=True):
        for row, mine in zip(one.steps, last.steps, strict=True):
            assert (mine.images, mine.correct) == (row.images, row.correct)
            assert mine.loss == pytest.approx(row.loss, rel=1e-12)


def test_every_interleaving_gives_the_same_bits():
    for schedule in SCHEDULES:
        keys = {"steps": 2, "schedule": schedule, "microbatches": 3, "bucket_bytes": 200}
        (first, _), *_ = train(plain, 6, 3, **keys)[0]
        for seed in range(1, 7):
            for other, _ in train(plain, 6, 3, seed=seed, **keys)[0]:
                assert np.array_equal(other, first)


def test_batch_normalisation_sees_microbatches():
    """Its statistics are those of a microbatch: with one it is the undivided network, else any stages agree."""
    for schedule in SCHEDULES:
        keys = {"steps": 8, "global_batch": BATCH, "schedule": schedule}
        ((alone, _),), _ = train(normalised, 1, 1, microbatches=1, **keys)
        ((one, _),), _ = train(normalised, 3, 3, microbatches=1, **keys)
        np.testing.assert_allclose(one, alone, rtol=0, atol=TOLERANCE)
        ((parameters, state),), _ = train(normalised, 1, 1, microbatches=5, **keys)
        for stages in (2, 3, 6):
            ((other, running),), _ = train(normalised, stages, stages, microbatches=5, **keys)
            np.testing.assert_allclose(other, parameters, rtol=0, atol=TOLERANCE)
            np.testing.assert_allclose(np.sort(running), np.sort(state), rtol=0, atol=TOLERANCE)
        assert np.abs(parameters - alone).max() > 1e-6


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("times", [(1,), (3, 1), (1, 2, 3), (2, 5, 5, 1), (4, 4, 4), (1,) * 8])
@pytest.mark.parametrize("microbatches", [1, 2, 7, 32])
def test_the_bubble_is_that_of_the_formula(times, microbatches, schedule):
    """One fully connected layer per stage, and Flatten, which takes no time, like messages; backward takes twice."""
    stages = len(times)
    layers = [Flatten("flat"), *(Linear(f"fc{i}", 10) for i in range(stages))]
    seconds = {"forward": 1e-3, "backward": 2e-3}

    def compute(rank, label):
        kind, _, name = label.partition(" ")
        return seconds.get(kind, 0.0) * times[rank] if name != "flat" else 0.0

    async def program(comm):
        part = slice(comm.rank + (comm.rank > 0), comm.rank + 2)
        settings = {"microbatches": microbatches, "schedule": schedule}
        await run_stage(comm, layers, part, stages, dtype="float32", settings=settings, steps=1)

    network = replace(NETWORKS["ethernet-10g"], link=Link(alpha=0.0, beta=0.0), gamma=0.0)
    world = simulated(stages, network, compute=compute)
    world.run(program)
    idle = 1 - microbatches * sum(times) * 3e-3 / (stages * world.now)
    balance = sum(times) / stages / max(times)
    share = bubble_share(stages, microbatches, balance)
    exact = schedule == "gpipe" or balance == 1
    assert idle == pytest.approx(share, abs=1e-9) if exact else 1 - balance <= idle <= share + 1e-9


def test_messages_are_activations_and_their_gradients():
    """Per step each boundary passes a batch forward and as many gradients back, in one message a microbatch."""
    world = in_process(2)
    layers = lenet5()

    async def program(comm):
        part = slice(0, 3) if comm.rank == 0 else slice(3, None)
        replica = Replica(layers, images().shape, backend=backend("numpy"), dtype="float64", part=part)
        mine = session("ring", "float64", replica=replica, dataset=images(), steps=2, evaluate_every=1000)
        mine.evaluation.due = lambda _steps: False
        mine.place = Place(0, data=await comm.split(comm.rank), model=comm, ranks=((0, 1),))
        await pipeline(comm, mine, microbatches=7)
        return replica

    first, second = world.run(program)
    size = 2 * GLOBAL_BATCH * int(np.prod(second.shape)) * 8
    assert first.output == second.shape
    assert world.bytes == [size, size]
    assert world.messages == [2 * 7, 2 * 7]


def test_activations_in_flight_take_the_memory_that_the_schedules_differ_in(monkeypatch):
    """Of the first of 4 stages: 16 microbatches with gpipe, 4 with 1f1b."""
    peaks = {}
    for schedule in SCHEDULES:
        # the pool of the process also counts arrays of earlier tests that await garbage collection
        monkeypatch.setattr(activation_pool, "_POOL", activation_pool._Pool())
        most = 0
        layers = [Convolution(f"conv{i}", 8, 3, padding=1) for i in range(4)]
        layers += [Flatten("flat"), Linear("fc", 10)]

        def compute(_rank, _label):
            nonlocal most
            most = max(most, activation_pool._POOL.in_use())
            return 1e-3

        async def program(comm, schedule=schedule, layers=layers):
            part = slice(comm.rank, comm.rank + 1 if comm.rank < 3 else None)
            keys = {"settings": {"microbatches": 16, "schedule": schedule}, "steps": 2, "global_batch": 64}
            await run_stage(comm, layers, part, 4, dtype="float32", **keys)

        simulated(4, NETWORKS["ethernet-10g"], compute=compute).run(program)
        peaks[schedule] = most
    assert peaks["gpipe"] > 2 * peaks["1f1b"]


def test_the_partition_is_that_of_brute_force():
    """The least longest stage; among equals the least volume between stages. Whole numbers: sums are exact."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        layers = int(rng.integers(1, 10))
        times = rng.integers(0, 6, layers).tolist()
        volumes = rng.integers(0, 50, layers).tolist()

        def costs(cut, times=times, volumes=volumes):
            return max(sum(times[part]) for part in cut), sum(volumes[part.stop - 1] for part in cut[:-1])

        for parts in range(1, layers + 1):
            inner = itertools.combinations(range(1, layers), parts - 1)
            every = [[slice(*pair) for pair in itertools.pairwise((0, *cuts, layers))] for cuts in inner]
            found = partition(times, parts, volumes)
            assert list(found) in every
            assert costs(found) == min(map(costs, every))
        for parts in (0, layers + 1):
            with pytest.raises(ValueError, match=f"{layers} layers make 1 to {layers} stages, not {parts}"):
                partition(times, parts, volumes)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(("stages", "microbatches"), [(1, 1), (2, 1), (3, 2), (4, 4), (4, 9), (5, 3)])
def test_every_microbatch_goes_forward_once_then_backward_once(name, stages, microbatches):
    for stage in range(stages):
        order = SCHEDULES[name](stage, stages, microbatches)
        for forward in (True, False):
            assert sorted(one.microbatch for one in order if one.forward == forward) == list(range(microbatches))
        for m in range(microbatches):
            first, second = (one.forward for one in order if one.microbatch == m)
            assert (first, second) == (True, False)
        most = {"gpipe": microbatches, "1f1b": min(stages - stage, microbatches)}
        assert in_flight(order) == most[name]
