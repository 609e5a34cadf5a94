"""Every split of every kind of layer trains as the undivided network does, with every strategy, and sends the stated bytes."""

from functools import partial
from math import prod

import numpy as np
import pytest
from contract.asynchronous import chosen
from contract.compression import planned
from contract.divided import (
    CASES,
    CLASSES,
    CONVOLUTIONAL,
    LOCAL,
    NORMALISED,
    SHAPE,
    TOLERANCE,
    by_one_rank,
    furthest,
    parameters,
    session_of,
    train_divided,
)
from contract.training import check_journals

from hpcdl import registry
from hpcdl.fabric.virtual.clocks import in_process
from hpcdl.models.resnet import resnet20
from hpcdl.nn.composite import Auxiliary, Residual
from hpcdl.nn.layer import gaussian
from hpcdl.nn.layers import (
    AveragePooling,
    BatchNorm,
    Convolution,
    Dropout,
    Flatten,
    Linear,
    LocallyConnected,
    MaxPooling,
)
from hpcdl.nn.split import layers as splitters
from hpcdl.nn.split.division import divide
from hpcdl.optim.adaptive import Adagrad
from hpcdl.prediction.parallelism import stated, variables
from hpcdl.trace.recorder import Recorder
from hpcdl.training.layerwise import layerwise
from hpcdl.training.local_sgd import parameter_averaging
from hpcdl.training.parts.mesh import Mesh, ModelGroup, placed
from hpcdl.training.parts.sections import ModelParallel
from hpcdl.training.sandblaster import sandblaster
from hpcdl.training.synchronous import synchronous


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize(("layers", "split", "linear"), CASES)
def test_equals_the_undivided_network(layers, split, linear, ranks):
    """Parameters and journals; each rank counts its share of the images."""
    recorder, recorders = Recorder(events=False), [Recorder(events=False) for _ in range(ranks)]
    alone = by_one_rank(layers, SHAPE, recorder=recorder, evaluate_every=0.5)
    mesh = Mesh(model=ranks, split=split, linear=linear)
    keys = {"recorders": recorders, "evaluate_every": 0.5}
    for mine, division in in_process(ranks, seed=ranks).run(
        lambda comm: train_divided(comm, layers, SHAPE, mesh, **keys)
    ):
        assert furthest(mine, division, alone) < TOLERANCE
    check_journals(recorder, recorders)


@pytest.mark.parametrize("strategy", [synchronous, layerwise])
@pytest.mark.parametrize(("exchange", "linear"), [("turns", "outputs"), ("slices", "inputs")])
@pytest.mark.parametrize("ranks", [2, 3])
def test_equals_the_undivided_network_in_passes(ranks, exchange, linear, strategy):
    """One weird trick's schemes (b) and (c); the masks of slices are drawn in another order."""
    layers = [Convolution("conv1", 5, 3, relu=True), *CONVOLUTIONAL[-6:]]
    if exchange == "slices":
        layers = [layer for layer in layers if not isinstance(layer, Dropout)]
    alone = by_one_rank(layers, SHAPE)
    mesh = Mesh(data=1, model=ranks, split="hybrid", linear=linear, exchange=exchange)
    train = partial(train_divided, layers=layers, shape=SHAPE, mesh=mesh, strategy=strategy)
    for mine, division in in_process(ranks, seed=7).run(train):
        assert furthest(mine, division, alone) < TOLERANCE


SPLIT_AND_NORMALISED = [
    *NORMALISED[:4],
    Auxiliary("loss1", [Flatten("flatten"), Linear("classifier", CLASSES)]),
    Flatten("flatten"),
    Linear("fc1", 9, relu=True),
    Auxiliary("loss2", [Linear("classifier", CLASSES)]),
    BatchNorm("bn2", gamma=gaussian(1.0), relu=True),
    Linear("fc2", 8),
    Auxiliary("loss3", [Linear("classifier", CLASSES)]),
    Linear("fc3", CLASSES),
]
"""Auxiliary classifiers before, within and after the passes, which end before ``bn2``."""

BLOCK_AFTER_SPLIT = [
    Convolution("conv1", 5, 3, relu=True),
    Flatten("flatten"),
    Linear("fc1", 9),
    Residual("block", [Linear("fc1", 9, relu=True), BatchNorm("bn1"), Linear("fc2", 9)]),
    Linear("fc", CLASSES),
]
"""The block is data-parallel, so that activations move where the passes end."""


@pytest.mark.parametrize("exchange", ["turns", "slices"])
@pytest.mark.parametrize("linear", ["outputs", "inputs"])
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize(
    "layers",
    [SPLIT_AND_NORMALISED, BLOCK_AFTER_SPLIT, resnet20(SHAPE, CLASSES)],
    ids=["normalised", "block", "resnet20"],
)
def test_every_exchange_gives_the_same_gradient(layers, ranks, linear, exchange):
    """Also of batch normalisation after split layers, and of auxiliary classifiers wherever they are."""

    def train(exchange):
        mesh = Mesh(model=ranks, split="hybrid", linear=linear, exchange=exchange)
        recorders = [Recorder(events=False) for _ in range(ranks)]
        found = in_process(ranks, seed=3).run(
            lambda comm: train_divided(comm, layers, SHAPE, mesh, recorders=recorders, steps=4)
        )
        steps = [step for one in recorders for step in one.steps]
        return [mine.replica for mine, _ in found], [(one.images, one.correct, one.loss) for one in steps]

    (expected, their_steps), (replicas, steps) = train("all"), train(exchange)
    for one, other in zip(expected, replicas, strict=True):
        assert np.abs(one.parameters - other.parameters).max() < TOLERANCE
        assert np.abs(one.state - other.state).max(initial=0.0) < TOLERANCE
    np.testing.assert_allclose(steps, their_steps, rtol=1e-10)


def test_every_schedule_gives_the_same_bits():
    mesh = Mesh(data=2, model=3, split="space", linear="inputs")
    train = partial(train_divided, layers=CONVOLUTIONAL, shape=SHAPE, mesh=mesh, steps=2)
    every = [[mine.replica.parameters for mine, _ in in_process(6, seed).run(train)] for seed in range(3)]
    for found in zip(*every, strict=True):
        assert all(np.array_equal(found[0], other) for other in found[1:])


def test_a_session_holds_only_its_parts():
    """Parameters, gradients and momentum, 8 bytes a number."""
    layers = [Flatten("flatten"), Linear("fc1", 64), Linear("fc2", 64), Linear("fc3", 8)]
    alone = by_one_rank(layers, (4, 4, 4), steps=1)
    whole = alone.replica.parameters.size
    for mine, _ in in_process(4).run(lambda comm: train_divided(comm, layers, (4, 4, 4), Mesh(model=4), steps=1)):
        assert mine.memory_bytes == alone.memory_bytes // 4 == 3 * 8 * whole // 4


def test_hosts_hold_whole_model_groups():
    """Ranks of two hosts take turns, as a launcher may place them."""

    async def program(comm):
        comm.memory.place = lambda _: np.array([comm.rank % 2, 0])
        return comm.rank % 2, (await placed(comm, 2)).group

    assert len(set(in_process(4).run(program))) == 2


IMAGE = (13, 7, 3)
BATCH = 11

FILTERS, FLAT = [Convolution("first", 5, 1)], Flatten("flatten")
PADDED = LocallyConnected("local", 4, (4, 2), stride=(2, 1), padding=(1, 0))
INSTANCES = [
    # splitter, split, layers before, the layer, variables of the formula
    (splitters.convolution_by_filters, "model", FILTERS, Convolution("conv", 6, 3), "H W C"),
    (splitters.convolution_by_rows, "space", FILTERS, Convolution("conv", 6, 5, padding=2), "k W C"),
    (splitters.locally_connected_by_rows, "model", [LocallyConnected("first", 5, 1)], PADDED, "h W C"),
    (splitters.linear_by_outputs, "model", [FLAT, Linear("first", 19)], Linear("fc", 9), "d"),
    (splitters.linear_by_outputs, "hybrid", [*FILTERS, FLAT], Linear("fc", 9), "d"),
    (splitters.linear_by_inputs, "space", [*FILTERS, FLAT], Linear("fc", 17), "d"),
    (splitters.pooling_by_rows, "space", FILTERS, MaxPooling("pool", 3, stride=2), "h W C"),
    (splitters.pooling_by_rows, "space", FILTERS, AveragePooling("pool", 4, padding=1), "h W C"),
    (splitters.batch_norm_by_positions, "space", FILTERS, BatchNorm("bn"), "C"),
]


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize(("splitter", "split", "before", "layer", "names"), INSTANCES)
def test_counted_bytes_are_the_closed_form(splitter, split, before, layer, names, ranks):
    by = "inputs" if splitter is splitters.linear_by_inputs else "outputs"
    world, layers, shape = in_process(ranks), [*before, layer], IMAGE
    for one in before:
        shape = one.output(shape)
    values = variables(layer, shape, splitter, BATCH, ranks)
    assert set(names.split()) <= set(values)
    if names == "k W C":
        assert values["h"] == (ranks - 1) * 2 * (layer.window.kernel[0] // 2)

    async def program(comm):
        place = await placed(comm, ranks)
        division = divide(layers, IMAGE, split=split, linear=by, rank=comm.rank, ranks=ranks)
        replica = session_of((), IMAGE, division=division).replica
        flow = ModelParallel(place.model, division, replica.stages)
        images = ModelGroup(place, division, replica).shares(BATCH)
        # the boundary where the layer takes its inputs, or gives its sums or its moments
        number = len(before) + (splitter in {splitters.linear_by_inputs, splitters.batch_norm_by_positions})
        box = division.boundaries[number][0].boxes(images)[comm.rank]
        x = replica.backend.zeros(prod(high - low for low, high in box), "float64")
        start = world.bytes[comm.rank]
        moved = await flow.forward(number, x, images)
        middle = world.bytes[comm.rank]
        await flow.backward(number, moved, images)
        return middle - start, world.bytes[comm.rank] - middle

    forward, backward = zip(*world.run(program), strict=True)
    assert sum(forward) == 8 * stated(splitter, "Forward", values)
    assert sum(backward) == 8 * stated(splitter, "Backward", values)


PLAIN_LAYERS = [layer for layer in CONVOLUTIONAL if not isinstance(layer, Dropout)]


def compressed(name, scheme, settings, mesh, ranks, strategy=synchronous, **keys):
    """Return the sessions and the divisions of all ranks."""
    keys |= {"compression": planned(name, scheme, **settings), "aggregate": registry.find("aggregation", scheme)}
    world = in_process(ranks, seed=3)
    return world.run(lambda comm: train_divided(comm, PLAIN_LAYERS, SHAPE, mesh, strategy=strategy, **keys))


@pytest.mark.slow
@pytest.mark.parametrize(("split", "linear"), [("model", "outputs"), ("space", "inputs"), ("hybrid", "outputs")])
@pytest.mark.parametrize(("scheme", "ranks"), [("allgather", 4), ("sparcml", 6)])
def test_a_compressor_that_sends_everything_changes_nothing(scheme, ranks, split, linear):
    mesh = Mesh(data=2, model=ranks // 2, split=split, linear=linear)
    alone = by_one_rank(PLAIN_LAYERS, SHAPE, steps=5)
    strategy = layerwise if ranks == 6 else synchronous
    for mine, division in compressed("top_k", scheme, {"density": 1.0}, mesh, ranks, strategy, steps=5):
        assert furthest(mine, division, alone) < TOLERANCE


@pytest.mark.parametrize(
    ("name", "scheme", "settings"),
    [
        ("fp16", "ring", {}),
        ("power_sgd", "ring", {"rank": 1}),
        ("random_k", "butterfly", {"density": 0.1}),
        ("qsgd", "allgather", {}),
        ("top_k", "allgather", {"density": 0.05}),
    ],
)
@pytest.mark.parametrize("split", ["space", "hybrid"])
def test_ranks_keep_the_same_parameters(split, name, scheme, settings):
    """Those with the same part, and all ranks those of layers that are whole; parts are unequal."""
    found = compressed(name, scheme, settings, Mesh(data=2, model=3, split=split), 6, steps=3, bucket_bytes=2048)
    tables = [parameters(mine) for mine, _ in found]
    whole = [name for name in tables[0] if name.rpartition(".")[0] in found[0][1].whole]
    assert whole
    for rank, (mine, _) in enumerate(found):
        assert np.array_equal(mine.replica.parameters, found[(rank + 3) % 6][0].replica.parameters)
        assert all(np.array_equal(tables[rank][name], tables[0][name]) for name in whole)


LINEAR = [Flatten("flatten"), Linear("fc1", 13, relu=True), Linear("fc2", 9, relu=True), Linear("fc3", 7)]
SMALL = (3, 5, 1)


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
    """Check parameters and evaluations of divided replicas, also those of an average, against whole ones."""
    settings["evaluate_every"] = 0.5
    expected = Recorder(events=False)
    alone = [session_of(layers, shape, None if rank else expected, **settings) for rank in range(replicas)]
    in_process(replicas).run(lambda comm: strategy(comm, alone[comm.rank]))
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
