"""ZeRO: results of synchronous training, bytes of the paper, and a share of the memory."""

from functools import partial

import numpy as np
import pytest
from contract.cases import case_of
from contract.tiny import tiny_session

from hpcdl import registry
from hpcdl.aggregation.parts.traits import half
from hpcdl.aggregation.ring import ring
from hpcdl.cases.parts.step_simulation import Conditions, virtual_step
from hpcdl.data.parts.sharding import EQUAL, Shares
from hpcdl.fabric.network import NETWORKS
from hpcdl.fabric.vectors import partition
from hpcdl.fabric.virtual.clocks import in_process, simulated
from hpcdl.nn.backend import backend
from hpcdl.nn.layers import Flatten, Linear, ReLU
from hpcdl.nn.replica import Replica
from hpcdl.training import zero as module
from hpcdl.training.synchronous import synchronous
from hpcdl.training.zero import zero

OPTIMIZERS = {
    "adagrad": {},
    "adam": {"weight_decay": 0.01},
    "adamw": {},
    "lamb": {},
    "lars": {"weight_decay": 0.01, "trust": 0.1},
    "nesterov": {},
    "rmsprop": {},
    "sgd": {"momentum": 0.9, "weight_decay": 0.01},
}
STAGES = [(1, 120), (1, 0), (2, 120), (2, 0), (3, None)]
"""Stage and bytes of a bucket: 120 cut the tensors, and no bucket has equal parts."""


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """Fill freed parts, which here are shorter than a page, with what spoils every sum."""

    def poison(vector):
        vector[:] = np.nan

    monkeypatch.setattr(module, "release", poison)


def mine(optimizer, scheme="ring", **settings):
    """Return a rank's session of a network of 59 parameters in four tensors."""
    layers = [Flatten("flatten"), Linear("fc1", 7), ReLU("relu"), Linear("fc2", 3)]
    replica = Replica(layers, (2, 2, 1), backend=backend("numpy"), dtype="float64", seed=1)
    rule = registry.find("optim", optimizer)(**OPTIMIZERS[optimizer])
    aggregate = registry.find("aggregation", scheme)
    return tiny_session(
        **{"replica": replica, "optimizer": rule, "aggregate": aggregate, "evaluate_every": 0.5, **settings}
    )


def trained(strategy, ranks, optimizer="adam", *, seed=0, world=None, **settings):
    """Return the sessions of all ranks."""

    async def program(comm):
        own = mine(optimizer, **settings)
        await strategy(comm, own)
        return own

    return (world or in_process(ranks, seed)).run(program)


@pytest.mark.parametrize(("stage", "bucket"), STAGES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_equals_synchronous_training(stage, bucket, optimizer):
    """With an evaluation every step, in any order of the ranks; within nodes of some ranks with unequal shares."""
    alone = trained(synchronous, 1, optimizer)[0].replica.parameters
    of_all = zip((2, 3, 4, 5, 3), ("ring", "halving_doubling", "direct", "circulant", "native"), strict=True)
    for ranks, scheme, size in [*((*one, None) for one in of_all), (4, "ring", 2), (6, "ring", 3), (3, "ring", 1)]:
        strategy = partial(zero, stage=stage, bucket_bytes=bucket, ranks_per_node=size)
        shares = Shares(weights=(3, 1)) if size else EQUAL
        found = trained(strategy, ranks, optimizer, scheme=scheme, seed=ranks, shares=shares)
        first, *others = (one.replica.parameters for one in found)
        np.testing.assert_allclose(first, alone, rtol=0, atol=1e-12)
        assert all(np.array_equal(first, other) for other in others)


def sent(strategy, ranks, **settings):
    """Return each rank's bytes of one step."""
    totals = []
    for steps in (2, 3):
        world = in_process(ranks)
        trained(strategy, ranks, "sgd", world=world, steps=steps, evaluate_every=9, **settings)
        totals.append(np.array(world.bytes))
    return totals[1] - totals[0]


@pytest.mark.parametrize(("stage", "bucket"), STAGES)
def test_bytes_are_those_of_the_paper(stage, bucket):
    """A ring's, to the byte: each rank sends all but one part in each half.

    Of 4 ranks in nodes of 2: half of V in each half of a ring within, V/2 in an allreduce across.
    """
    strategy = partial(zero, stage=stage, bucket_bytes=bucket)
    spans = [slice(35, 59), slice(0, 35)] if stage == 3 else mine("sgd").buckets(bucket)
    for ranks in (2, 3, 5):
        wanted = np.zeros(ranks)
        for span in spans:
            lengths = np.array(partition(np.zeros(span.stop - span.start), ranks).counts)
            wanted += lengths.sum() - lengths
            wanted += (2 if stage == 3 else 1) * (lengths.sum() - np.roll(lengths, -1))
        assert sent(strategy, ranks).tolist() == (8 * wanted).tolist()
        assert wanted.sum() == (3 if stage == 3 else 2) * (ranks - 1) * 59
    assert stage != 2 or sent(partial(strategy, ranks_per_node=2), 4).sum() == 6 * 59 * 8


class Counted:
    """A ring that notes the length of each vector that is gathered."""

    def __init__(self):
        self.gathered = []

    async def reduce_scatter(self, comm, parts):
        await half(ring, "reduce_scatter")(comm, parts)

    async def allgather(self, comm, parts):
        self.gathered.append(len(parts.whole))
        await half(ring, "allgather")(comm, parts)


def test_a_unit_of_stage_3_is_gathered_for_its_forward_its_backward_and_an_evaluation():
    """Layers of a group are one unit."""
    for group, units in (("", [35, 24]), ("block", [59])):
        aggregate = Counted()
        own = mine("sgd", aggregate=aggregate)
        for layer in own.replica.stages:
            layer.group = group
        in_process(1).run(lambda comm, own=own: zero(comm, own, stage=3))
        assert aggregate.gathered == [*units, *units[::-1], *units] * own.steps


def test_the_last_third_is_gathered_during_backward_and_the_rest_in_the_order_of_the_next_forward():
    aggregate = Counted()
    own = mine("sgd", aggregate=aggregate)
    spans = own.buckets(80)
    early = [span for span in spans if span.start >= 59 * 2 / 3]
    rest = spans[len(early) :][::-1]
    assert 1 <= len(early) < len(rest)
    in_process(1).run(lambda comm: zero(comm, own, bucket_bytes=80))
    assert aggregate.gathered == [span.stop - span.start for span in (*early, *rest)] * own.steps


def test_the_next_layers_are_gathered_while_one_computes():
    """In stage 3, where both layers are shorter than the window: forward and backward."""
    events = [[], []]
    world = simulated(2, NETWORKS["ethernet-10g"], compute=lambda *_: 0.1, events=events)
    trained(partial(zero, stage=3), 2, "sgd", world=world, steps=1, evaluate_every=9)
    ends = {label: end for _, label, _, end, *_ in events[0]}
    sent = [begin for _, label, begin, *_ in events[0] if label == "send"]
    stages = ("forward fc1", "forward fc2", "backward fc2")
    assert [sum(begin < ends[stage] for begin in sent) for stage in stages] == [2, 2, 4]


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_memory_is_that_of_the_formula(stage, monkeypatch):
    """With pages that are freed: optimizer state 1/p within 2 %, and the most of a step within 2 % and its pages."""
    monkeypatch.undo()
    ranks, width, depth = 4, 257, 9
    longest = 8 * width * (width + 1)
    layers = [Flatten("flatten"), *[Linear(f"fc{number}", width) for number in range(depth)], Linear("out", 3)]

    async def program(comm):
        replica = Replica(layers, (2, 2, 1), backend=backend("numpy"), dtype="float64", seed=1)
        own = tiny_session(replica=replica, optimizer=registry.find("optim", "adam")(), steps=3)
        await zero(comm, own, stage=stage, bucket_bytes=None if stage == 3 else longest)
        return own

    whole = in_process(1).run(program)[0].replica.parameters.nbytes
    for own in in_process(ranks).run(program):
        state = own.memory_bytes - own.resident_bytes
        assert state == pytest.approx(2 * whole / ranks, rel=0.02)
        parts = {1: 2 * whole, 2: whole + whole / ranks + 2 * longest, 3: 2 * whole / ranks + 4 * longest}[stage]
        assert own.resident_bytes <= 1.02 * parts + 4 * 4096 * depth * (stage > 1)


def simulated_step(**keys):
    spec = case_of("replay", batch_per_rank=1, flops=1e12, **keys).spec
    return virtual_step(spec, Conditions(spec.cluster, spec.compute_times, spec.images)), spec


def test_a_ring_sends_fewest_bytes_between_hosts():
    """Of 8 ranks on 2 hosts: one rank of a host sends to the other; parts within hosts cross in the sum alone."""
    hosts = {"ranks": 8, "network": "ethernet-10g", "ranks_per_host": 4}
    for scheme, settings, crossing in (
        ("ring", {}, 3 * 7 / 8),
        ("direct", {}, 3 * 4 * 4 / 8),
        ("ring", {"ranks_per_node": 4}, 2 * 1 / 2),
    ):
        training = {"name": "zero", "stage": 3, **settings}
        step, spec = simulated_step(training=training, aggregation=scheme, **hosts)
        assert step.bytes_per_host / spec.gradient_bytes == pytest.approx(crossing, rel=1e-3)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_simulated_parts_take_no_update_time_if_the_whole_takes_none(stage):
    """On one rank a step is a synchronous one; rates of FLOP/s state no time of an update."""
    keys = {"dataset": "digits", "aggregation": "ring", "network": "gemini", "ranks": 1}
    parts, whole = (
        simulated_step(training=training, **keys)[0].seconds
        for training in ({"name": "zero", "stage": stage}, "synchronous")
    )
    assert parts == pytest.approx(whole, rel=1e-6)
