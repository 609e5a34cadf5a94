"""Replicas that span ranks train as undivided ones do, and exchange their own parameters only."""

from functools import partial

import numpy as np
import pytest
from contract.asynchronous import chosen
from contract.divided import LOCAL, NORMALISED, SHAPE, TOLERANCE, furthest, session_of, train_divided

from hpcdl.fabric.virtual.inprocess import in_process
from hpcdl.nn.layers import Flatten, Linear
from hpcdl.nn.split.division import divide
from hpcdl.optim.adaptive import Adagrad
from hpcdl.trace.recorder import Recorder
from hpcdl.training.local_sgd import parameter_averaging
from hpcdl.training.parts.split.mesh import Mesh, placed
from hpcdl.training.sandblaster import sandblaster

LINEAR = [Flatten("flatten"), Linear("fc1", 13, relu=True), Linear("fc2", 9, relu=True), Linear("fc3", 7)]
SMALL = (3, 5, 1)


def undivided(replicas, layers, shape, strategy, **settings):
    """Return the sessions and recorders of the same training by whole replicas."""
    recorders = [Recorder(events=False) for _ in range(replicas)]
    sessions = [session_of(layers, shape, recorder, **settings) for recorder in recorders]
    in_process(replicas).run(lambda comm: strategy(comm, sessions[comm.rank]))
    return sessions, recorders


def divided(replicas, ranks, layers, shape, strategy, seed=0, mesh=None, **settings):
    """Return the sessions and divisions of all ranks, and their recorders."""
    mesh = mesh or Mesh(data=replicas, model=ranks)
    recorders = [Recorder(events=False) for _ in range(replicas * ranks)]
    world = in_process(replicas * ranks, seed)
    found = world.run(
        lambda comm: train_divided(comm, layers, shape, mesh, strategy=strategy, recorders=recorders, **settings)
    )
    assert not [post for group in world.groups for box in group.mailboxes() for post in box.posts()]
    return found, recorders


def check(replicas, ranks, layers, shape, strategy, tolerance=TOLERANCE, mesh=None, **settings):
    """Check parameters and evaluations, also those of an average and its distance, of divided replicas."""
    settings["evaluate_every"] = 0.5
    alone, (expected, *_) = undivided(replicas, layers, shape, strategy, **settings)
    found, recorders = divided(replicas, ranks, layers, shape, strategy, seed=ranks, mesh=mesh, **settings)
    for (mine, division), recorder in zip(found, recorders, strict=True):
        assert furthest(mine, division, alone[0]) < tolerance
        for one, other in zip(recorder.evaluations, expected.evaluations, strict=True):
            assert (one.loss, one.accuracy) == pytest.approx((other.loss, other.accuracy))
            assert one.consensus == pytest.approx(other.consensus, nan_ok=True, abs=1e-12)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize(
    ("replicas", "servers", "dedicated", "layers", "shape"),
    [(1, 1, False, NORMALISED, SHAPE), (2, 2, False, LOCAL, SHAPE), (3, 1, True, LINEAR, SMALL)],
)
def test_bsp_equals_undivided_workers(layers, shape, replicas, servers, dedicated, ranks):
    """With all gradients and bound 0 the order of updates is fixed."""
    numbers = {"name": "ssp", "collect": "all", "bound": 0, "servers": servers, "dedicated": dedicated}
    check(replicas, ranks, layers, shape, chosen(replicas, numbers), steps=4)


SETTINGS = [
    {},
    {"name": "softsync", "collect": 2, "servers": 2, "scale_rate": "staleness"},
    {"name": "ssp", "bound": 1, "dedicated": True},
    {"name": "ssp", "collect": "all", "bound": 3},
    {"name": "downpour", "n_fetch": 3, "n_push": 2, "overlap": True, "servers": 3, "warm_start": 2},
    {"delay_compensation": "adaptive"},
]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(18))
def test_no_schedule_deadlocks_and_replicas_never_disagree(seed):
    """Three model groups: all mini-batches are trained on, at the same clock by all ranks of a group."""
    ranks, replicas = 2 + seed % 2, 3
    settings = {"servers": 1, **SETTINGS[seed % len(SETTINGS)]}
    workers = replicas - settings["servers"] if settings.get("dedicated") else replicas
    found, recorders = divided(
        replicas, ranks, LINEAR, SMALL, chosen(replicas, settings), seed, steps=4, optimizer=Adagrad()
    )
    steps = [one.steps for one in recorders]
    assert sum(one.images for rows in steps for one in rows) == 4 * 24
    for group in range(replicas):
        one, *others = steps[group * ranks : (group + 1) * ranks]
        assert all(len(other) == len(one) for other in others)
        assert all(sum(row.images for row in rows) == 24 // workers for rows in zip(one, *others, strict=True))
    # all ranks with the same part end with the same parameters, those of the servers
    for position in range(ranks):
        one, *others = found[position::ranks]
        assert all(np.array_equal(other[0].replica.parameters, one[0].replica.parameters) for other in others)


def test_parameters_and_gradients_go_to_their_holders_only():
    """Outside a model group, all messages are within the ranks with the same parts; activations stay in the group."""
    replicas, ranks = 3, 2

    class Refuses:
        """Communicator of all ranks, on which nothing but the tests' sums may move."""

        def __init__(self, comm):
            self._comm = comm

        def __getattr__(self, name):
            assert name not in {"send", "recv", "exchange", "get"}, name
            return getattr(self._comm, name)

    async def program(comm):
        place = await placed(comm, ranks)
        assert (place.data.size, place.data.rank, place.model.size) == (replicas, comm.rank // ranks, ranks)
        division = divide(LINEAR, SMALL, split="model", linear="outputs", rank=place.model.rank, ranks=ranks)
        mine = session_of(LINEAR, SMALL, None, place, division, steps=3)
        await chosen(replicas, {"servers": 2, "dedicated": True})(Refuses(comm), mine)
        return mine.replica.parameters

    assert len(in_process(replicas * ranks, 3).run(program)) == replicas * ranks


def test_averaging_equals_undivided_replicas():
    """An evaluation between two averages tests the average, and records the replicas' distance from it."""
    for layers, shape, split, ranks, optimizer_state in [
        (LINEAR, SMALL, "model", 2, "kept"),
        (LINEAR, SMALL, "model", 3, "averaged"),
        (LOCAL, SHAPE, "space", 3, "reset"),
        (LOCAL, SHAPE, "hybrid", 2, "averaged"),
    ]:
        strategy = partial(parameter_averaging, period=3, optimizer_state=optimizer_state)
        mesh = Mesh(data=2, model=ranks, split=split)
        check(2, ranks, layers, shape, strategy, mesh=mesh, steps=7)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize(("replicas", "servers", "layers", "shape"), [(1, 0, LOCAL, SHAPE), (3, 1, LINEAR, SMALL)])
def test_sandblaster_equals_undivided_replicas(replicas, servers, layers, shape, ranks):
    """Dot products are sums over the shards of all parts. The order of portions changes sums by rounding."""
    strategy = partial(sandblaster, servers=servers, portions_per_worker=3, history=4)
    check(replicas, ranks, layers, shape, strategy, tolerance=1e-8, steps=6, learning_rate=lambda _step: 1.0)
