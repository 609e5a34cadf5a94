"""Simulated exchanges of compressed gradients: the bytes and charges of real ones, at given costs."""

import numpy as np
import pytest
from contract.cases import case_of

from hpcdl.aggregation.allgather import allgather
from hpcdl.aggregation.ring import ring
from hpcdl.aggregation.sharded_parameter_server import sharded_parameter_server
from hpcdl.cases.keys.compute_times import at_rate
from hpcdl.cases.keys.key import Choice
from hpcdl.cases.keys.scheme import plan
from hpcdl.cases.parts.operations import sizes
from hpcdl.cases.parts.step_simulation import Conditions, exchange_costs, virtual_step
from hpcdl.compression.parts.protocol import Layout
from hpcdl.fabric.network import Link, Network
from hpcdl.fabric.virtual.clocks import simulated
from hpcdl.models.caffe import lenet5
from hpcdl.nn.replica import Replica
from hpcdl.training.parts.compressed import Compressed

SHAPE = (8, 8, 1)
LAYERS = lenet5(SHAPE, 10)
TENSORS = Replica(LAYERS, SHAPE, backend=sizes()).tensors
SIZE = TENSORS[-1].span.stop
FREE = Network("free", Link(0.0, 0.0), "test", gamma=0.0)
EXCHANGES = [
    ("fp16", "ring"),
    ({"name": "power_sgd", "rank": 2}, "ring"),
    ("one_bit", "sharded_parameter_server"),
    ({"name": "top_k", "density": 0.01}, "allgather"),
    ({"name": "random_k", "density": 0.01}, "ring"),
    ("terngrad", "sharded_parameter_server"),
]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3, 5])
@pytest.mark.parametrize("compression, aggregation", EXCHANGES, ids=str)
def test_sizes_alone_send_and_touch_the_bytes_of_a_real_exchange(compression, aggregation, ranks):
    """Of one exchange in a step, in one piece."""
    keys = {"dataset": "digits", "training": {"name": "synchronous", "bucket_bytes": 0}, "batch_per_rank": 1}
    spec = case_of("replay", **keys, ranks=ranks, compression=compression, aggregation=aggregation).spec
    chosen = plan(spec.compression, spec.aggregation)
    step = virtual_step(spec, Conditions(FREE, at_rate(LAYERS, SHAPE, 1e9), 1))
    events = [[] for _ in range(ranks)]
    world = simulated(ranks, FREE, events=events)

    def zeros(name, size=None):
        return np.zeros(SIZE if size is None else size, np.float32)

    async def exchange(comm):
        vector = np.random.default_rng(comm.rank).standard_normal(SIZE, np.float32)
        side = Compressed(chosen, Layout(size=SIZE, tensors=TENSORS), zeros, lambda _step: False)
        await side.reduce(comm, slice(0, SIZE), vector, spec.aggregation.bind())

    world.run(exchange)
    assert step.bytes_sent == pytest.approx(max(world.bytes), rel=0.02)  # random positions differ in their gaps
    for label in ("encode", "decode"):  # a second for each byte that is touched, and nothing else
        touched = sum(size for _, of, _, _, _, size in events[0] if of == label)
        costs = dict.fromkeys(("encode", "decode", "add"), 0.0) | {label: 1.0}
        at_cost = Conditions(FREE, at_rate(LAYERS, SHAPE, 1e18), 1, costs=costs)
        assert virtual_step(spec, at_cost).seconds == pytest.approx(touched, rel=0.02)


def test_prices_are_measured_for_all_arithmetic_of_an_exchange():
    for aggregate, compression, arithmetic in [
        (ring, None, {"add"}),
        (ring, "bf16", {"add", "encode", "decode"}),
        (allgather, "top_k", {"encode", "decode"}),
        (sharded_parameter_server, "one_bit", {"encode", "decode"}),
    ]:
        scheme = Choice("aggregation", aggregate.__name__)
        chosen = None if compression is None else plan(Choice("compression", compression), scheme)
        costs = exchange_costs(chosen, aggregate, TENSORS)
        assert set(costs) == arithmetic
        assert all(0 < one < 1e-3 for one in costs.values())
