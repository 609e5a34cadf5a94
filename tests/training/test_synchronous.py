"""Synchronous and layerwise training on p ranks equal training on one rank; buckets cover the gradient."""

from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from contract import training
from contract.aggregations import SCHEMES
from contract.cases import case_of
from contract.training import TOLERANCE, check_journals, difference, session

from hpcdl import registry
from hpcdl.cases.parts.step_simulation import Conditions, virtual_step
from hpcdl.data.parts.sharding import Shares
from hpcdl.fabric.network import NETWORKS
from hpcdl.fabric.virtual.clocks import in_process, simulated
from hpcdl.optim.parts.protocol import LossScaling
from hpcdl.optim.sgd import SGD
from hpcdl.trace.recorder import Recorder
from hpcdl.training.layerwise import layerwise
from hpcdl.training.parts.bucketing import MIN_FITTED, bucket_bytes, buckets
from hpcdl.training.synchronous import synchronous

TWO_BUCKETS = 300_000
"""Bytes: one bucket for the fully connected layers, and one for the convolutions."""

MANY = 20_000
"""Bytes: a layer's gradient, or a part of one."""

RANKS = (3, 2, 4, 5, 8)

LAYERWISE = ("ring", "halving_doubling", "tree", "two_shot", "butterfly")
LAYERWISE_BYTES = (None, 2000, 30_000, 100_000, 2000)

UNEQUAL = [(ranks, "float64", weights) for ranks in (2, 7, 9) for weights in ((1,), (3, 1), (1, 1, 7))]


train = partial(training.train, synchronous)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "aggregation", "ranks", "dtype", "settings"),
    [
        (synchronous, name, RANKS[i % 5], "float64", {"bucket_bytes": MANY if i % 2 else None})
        for i, name in enumerate(SCHEMES)
    ]
    + [(synchronous, "ring", p, "float32", {"bucket_bytes": TWO_BUCKETS}) for p in RANKS]
    + [(synchronous, name, 3, "float32", {}) for name in ("halving_doubling", "tree")]
    + [(synchronous, "ring", *one, {"shares": Shares(weights=of)}) for *one, of in UNEQUAL]
    + [
        (layerwise, name, RANKS[i], "float64", {"bucket_bytes": LAYERWISE_BYTES[i]})
        for i, name in enumerate(LAYERWISE)
    ],
)
def test_equals_one_rank_with_the_whole_batch(strategy, aggregation, dtype, settings, ranks):
    """The gradient is scaled by the global batch, not by a rank's share."""
    first, *others = training.train(strategy, ranks, aggregation, dtype, **settings)
    assert difference(first, dtype) < TOLERANCE[dtype]
    assert all(np.array_equal(first, other) for other in others)


def test_one_rank_equals_the_plain_loop():
    for aggregation in ("ring", "none"):
        assert np.array_equal(*train(1, aggregation, "float32"), training.by_one_rank("float32"))


def test_a_rank_may_have_no_images():
    settings = {"global_batch": 3, "steps": 2}
    alone, *others = [train(ranks, "ring", "float64", **settings)[0] for ranks in (1, 2, 5)]
    for parameters in others:
        np.testing.assert_allclose(parameters, alone, atol=TOLERANCE["float64"])


def test_the_journals_of_all_ranks_add_up_to_that_of_one_rank():
    (alone,), recorders = ([Recorder(events=False) for _ in range(ranks)] for ranks in (1, 7))
    for those in ([alone], recorders):
        train(len(those), "tree", "float64", recorders=those, evaluate_every=0.5)
    check_journals(alone, recorders)
    rows, evaluations = alone.steps, alone.evaluations
    assert [(row.step, row.epoch, row.images, row.learning_rate) for row in rows] == [
        (step, step // 11, training.GLOBAL_BATCH, training.learning_rate(step)) for step in range(training.STEPS)
    ]  # 1437 images are 11 whole batches
    assert [(row.step, row.epoch, row.samples) for row in evaluations] == [
        (step, step / 11, step * training.GLOBAL_BATCH) for step in (6, 11, 12)
    ]
    assert rows[0].loss > 1.5 > rows[-1].loss
    assert evaluations[-1].accuracy > 0.8


def backward_and_exchanges(bucket_bytes):
    """Return the end of backward and [(task, begin) of each send] of one step in virtual time."""
    events = [[], []]
    network = NETWORKS["ethernet-10g"]

    async def program(comm):
        mine = session("ring", "float32", steps=1)
        await synchronous(comm, mine, bucket_bytes=bucket_bytes)

    simulated(2, network, compute=lambda *_: 0.1, events=events).run(program)
    done = [end for _, label, _, end, *_ in events[0] if label == "backward conv1"]
    return done[0], [(task, begin) for task, label, begin, *_ in events[0] if label == "send"]


def test_a_bucket_is_sent_as_soon_as_it_is_complete_and_without_buckets_all_after_backward():
    """Each stage of backward takes 0.1 s: fc2, fc1, ..., conv1."""
    done, exchanges = backward_and_exchanges(TWO_BUCKETS)
    early = [(task, round((done - begin) / 1e8)) for task, begin in exchanges if begin < done]
    assert {task for task, _ in early} == {1}
    assert early[0] == (1, 5)  # when fc1 is done, flatten, pool2, conv2, pool1 and conv1 are left
    assert [task for task, begin in exchanges if begin >= done] == [0, 0]
    done, exchanges = backward_and_exchanges(None)
    assert [(task, begin >= done) for task, begin in exchanges] == [(0, True)] * 2


@pytest.mark.parametrize(
    "sizes", [(7,), (5, 0, 12, 3), (0, 0), (), (1, 100, 1), (0, 3, 3, 0), (40, 30, 20, 10, 1), (1000, 1)]
)
@pytest.mark.parametrize("smallest", [1, 4, 10, 1000])
def test_slices_cover_the_vector_from_its_end_to_its_start(sizes, smallest):
    """Those of stages without a gap; no slice is empty."""
    spans = [slice(begin, end) for begin, end in pairwise(np.cumsum([0, *sizes]).tolist())]
    found = buckets(spans, smallest)
    end = sum(sizes)
    for piece in found:
        assert piece.start < piece.stop == end
        end = piece.start
    assert end == 0
    lengths = [piece.stop - piece.start for piece in found]
    assert all(length < 2 * smallest for length in lengths)
    assert all(smallest <= length for length in lengths[:-1])
    with pytest.raises(ValueError, match=f"one ends at {sum(sizes)}, the next begins at {sum(sizes) + 1}"):
        buckets([slice(0, sum(sizes)), slice(sum(sizes) + 1, sum(sizes) + 2)], smallest)
    with pytest.raises(ValueError, match="smallest = 0"):
        buckets(spans, 0)


@pytest.mark.parametrize("ranks", [2, 3, 8, 17])
@pytest.mark.parametrize(("alpha", "beta"), [(100e-6, 1 / 25e6), (2e-6, 1 / 10e9)])
def test_the_latency_of_a_ring_is_the_given_share_of_its_transfer(ranks, alpha, beta):
    """No network has thousands of buckets."""
    size = bucket_bytes(alpha, beta, ranks, latency=0.05)
    share = (2 * (ranks - 1) * alpha) / (2 * size * (ranks - 1) / ranks * beta)
    assert share == pytest.approx(0.05, rel=1e-3)
    assert bucket_bytes(0, beta, ranks) == bucket_bytes(1, 1, ranks) == MIN_FITTED
    for wrong in ((-alpha, beta, ranks), (alpha, 0, ranks), (alpha, beta, 0)):
        with pytest.raises(ValueError, match="alpha must be at least 0, the others more than 0"):
            bucket_bytes(*wrong)


@pytest.mark.parametrize("bucket_bytes", [0, 20_000])
@pytest.mark.parametrize("aggregation", ["binomial", "chain", "parameter_server", "tree"])
@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_a_server_that_updates_layers_is_synchronous_training(ranks, aggregation, bucket_bytes):
    """In every schedule; only rank 0 has velocities."""
    settings = {"chain": {"segment_bytes": 4096}, "tree": {"arity": 3}}.get(aggregation, {})
    scheme = partial(registry.find("aggregation", aggregation), **settings)
    for seed in range(2):

        async def program(comm):
            mine = session("ring", "float64", aggregate=scheme, evaluate_every=0.5)
            await layerwise(comm, mine, bucket_bytes=bucket_bytes, updates="server")
            return mine.replica.parameters, mine.memory_bytes

        (first, memory), *others = in_process(ranks, seed).run(program)
        assert difference(first, "float64") < 1e-12
        assert all(np.array_equal(first, other) for other, _ in others)
        assert (memory, *(other for _, other in others)) == (3 * first.nbytes, *[2 * first.nbytes] * (ranks - 1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "network", "images"), [("googlenet", "ethernet-1g", 32), ("vgg16", "ethernet-10g", 4)]
)
def test_priority_of_the_first_layers_shortens_a_step(model, network, images):
    """If the exchange takes longer than backward, the next forward begins earlier."""

    def seconds(strategy, **settings):
        keys = {"model": model, "training": {"name": strategy, **settings}, "aggregation": "halving_doubling"}
        keys |= {"ranks": 8, "batch_per_rank": images, "network": network, "flops": 0.428e12}
        spec, link = case_of("replay", **keys).spec, NETWORKS[network].link
        bucket = bucket_bytes(link.alpha, link.beta, 8)
        return virtual_step(spec, Conditions(spec.cluster, spec.compute_times, images, bucket)).seconds

    whole = seconds("layerwise", bucket_bytes=0)
    assert seconds("layerwise") < 0.97 * whole
    assert whole < seconds("synchronous")


def scaled(strategy, overflows):
    """Return the parameters, each step's scale and the span of conv2, whose gradient overflows at the given steps."""

    async def program(comm):
        replica, scales = session("ring", "float64").replica, []
        (conv2,) = (stage for stage in replica.stages if stage.name == "conv2")
        original = conv2.backward

        def backward(dy, *, first):
            dx = original(dy, first=first)
            if len(scales) in overflows:
                replica.gradients[conv2.span] = np.inf
            scales.append(replica.loss_scale)
            return dx

        conv2.backward = backward
        optimizer = LossScaling(SGD(momentum=0.9), replica, scale=2.0**20, growth_interval=2)
        await strategy(comm, session("ring", "float64", optimizer=optimizer, replica=replica, steps=6))
        return replica.parameters, scales, conv2.span

    return in_process(2).run(program)[0]


def test_with_a_loss_scale_it_equals_synchronous_training_but_an_overflow_skips_only_its_layer():
    """The scale doubles after every two steps, for all layers at once, and is halved once."""
    for overflows, powers in (([], (0, 0, 1, 1, 2, 2)), ([0], (0, -1, -1, 0, 0, 1))):
        found, scales, _ = scaled(layerwise, overflows)
        expected, wanted, _ = scaled(synchronous, overflows)
        assert scales == wanted == [2.0 ** (20 + power) for power in powers]
        assert np.isfinite(found).all()
        assert overflows or found == pytest.approx(expected, rel=1e-9, abs=1e-12)
    after_all, _, conv2 = scaled(layerwise, range(6))
    start = session("ring", "float64").replica.parameters
    assert np.array_equal(after_all[conv2], start[conv2])
    assert not np.array_equal(after_all, start)
