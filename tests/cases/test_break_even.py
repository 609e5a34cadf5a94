"""Simulated exchanges of compressed gradients: the bytes and charges of real ones, at given prices."""

from functools import partial

import numpy as np
import pytest

from hpcdl import suite
from hpcdl.aggregation.allgather import allgather
from hpcdl.aggregation.ring import ring
from hpcdl.aggregation.sharded_parameter_server import sharded_parameter_server
from hpcdl.cases import break_even
from hpcdl.cases.simulation.exchange_prices import exchange_prices
from hpcdl.cases.simulation.step_simulation import CYCLES, Training, tensors_of, virtual_step
from hpcdl.cases.spec.compute_times import at_rate
from hpcdl.cases.spec.keys import Choice
from hpcdl.cases.spec.scheme import plan
from hpcdl.fabric.network import Link, Network
from hpcdl.fabric.virtual.simulated import simulated
from hpcdl.models.lenet5 import lenet5
from hpcdl.training.parts.compressed.compressed import Compressed
from hpcdl.training.synchronous import synchronous

SHAPE = (8, 8, 1)
LAYERS = lenet5(SHAPE, 10)
TENSORS = tensors_of(LAYERS, SHAPE)
SIZE = TENSORS[-1].span.stop
FREE = Network("free", Link(0.0, 0.0), "test", gamma=0.0)
EXCHANGES = [
    (Choice("compression", "fp16"), Choice("aggregation", "ring")),
    (Choice("compression", "power_sgd", {"rank": 2}), Choice("aggregation", "ring")),
    (Choice("compression", "one_bit"), Choice("aggregation", "sharded_parameter_server")),
    (Choice("compression", "top_k", {"density": 0.01}), Choice("aggregation", "allgather")),
    (Choice("compression", "random_k", {"density": 0.01}), Choice("aggregation", "ring")),
    (Choice("compression", "terngrad"), Choice("aggregation", "sharded_parameter_server")),
]


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("ranks", [2, 3, 5])
@pytest.mark.parametrize("compression, aggregation", EXCHANGES, ids=str)
def test_sizes_alone_send_and_touch_the_bytes_of_a_real_exchange(compression, aggregation, ranks):
    chosen = plan(compression, aggregation)
    training = Training(
        partial(synchronous, bucket_bytes=0), aggregation.bind(), LAYERS, SHAPE, "float32", plan=chosen
    )
    step = virtual_step(training, ranks, 1, FREE, at_rate(LAYERS, SHAPE, 1e9), traced=True)
    events = [[] for _ in range(ranks)]
    world = simulated(ranks, FREE, events=events)

    def zeros(name, size=None):
        return np.zeros(SIZE if size is None else size, np.float32)

    async def exchange(comm):
        vector = np.random.default_rng(comm.rank).standard_normal(SIZE, np.float32)
        side = Compressed(chosen, TENSORS, SIZE, "float32", zeros, lambda _step: False, seed=0)
        await side.reduce(comm, slice(0, SIZE), vector, aggregation.bind())

    world.run(exchange)
    assert step.bytes_sent == pytest.approx(max(world.bytes), rel=0.02)  # random positions differ in their gaps
    for label in ("encode", "decode"):
        touched = sum(size for _, of, _, _, _, size in events[0] if of == label)
        assert step.touched[label] == pytest.approx(touched, rel=0.02)


def test_a_step_takes_the_prices_of_its_arithmetic():
    chosen = plan(*EXCHANGES[1])
    prices = {"encode": 1e-6, "decode": 1e-7, "add": 0.0}
    training = Training(
        partial(synchronous, bucket_bytes=0), ring, LAYERS, SHAPE, "float32", plan=chosen, prices=prices
    )
    step = virtual_step(training, 3, 1, FREE, at_rate(LAYERS, SHAPE, 1e18), traced=True)
    assert step.seconds == pytest.approx((3 * 1e-6 + 2 * 1e-7) * 4 * SIZE, rel=1e-5)
    assert sum(step.touched[one] * prices[one] for one in ("encode", "decode")) == pytest.approx(
        step.seconds, rel=1e-6
    )


@pytest.mark.parametrize(
    "aggregate, compression",
    [(ring, None), (ring, "bf16"), (allgather, "top_k"), (sharded_parameter_server, "one_bit")],
)
def test_prices_are_measured_for_all_arithmetic_of_an_exchange(aggregate, compression):
    chosen = compression and plan(Choice("compression", compression), Choice("aggregation", aggregate.__name__))
    prices = exchange_prices(chosen or None, aggregate, TENSORS)
    assert set(prices) == ({"encode", "decode"} if compression else set()) | (
        {"add"} if aggregate is ring else set()
    )
    assert all(0 < one < 1e-3 for one in prices.values())


def test_a_set_up_records_its_rivals_and_its_break_even(monkeypatch):
    monkeypatch.setattr(break_even, "_prices", lambda *_: {"encode": 1e-9, "decode": 1e-9, "add": 1e-10})
    spec = break_even.BreakEvenSpec(
        model=Choice("models", "lenet5"),
        dataset=Choice("datasets", "digits"),
        training=Choice("training", "synchronous", {"bucket_bytes": 0}),
        compression=Choice("compression", "power_sgd", {"rank": 1}),
        ranks=3,
        batch_per_rank=1,
        network="ethernet-1g",
        flops=1e12,
    )
    break_even.check(spec, [])
    found = simulated(1, FREE).run(break_even.program(spec, None))[0]
    rate = found["break_even_dense_bytes_per_second"]
    saved = found["dense_bytes"] - found["step_bytes"]
    assert found["dense_bytes"] * CYCLES == pytest.approx(CYCLES * 4 * SIZE * 4 / 3, rel=0.01)
    assert found["compressed_seconds"] < found["half_precision_seconds"] < found["dense_seconds"]
    assert rate is None or rate > saved / found["dense_seconds"]


@pytest.mark.parametrize(
    "compression, expected",
    [
        ("power_sgd", ["ring", "halving_doubling"]),
        ("top_k", ["allgather", "sharded_parameter_server", "sparcml"]),
        ("dgc", ["allgather", "sparcml"]),
        ("terngrad", ["allgather", "sharded_parameter_server"]),
    ],
)
def test_a_compressor_has_its_fastest_exchange(monkeypatch, compression, expected):
    prices = {"encode": 1e-12, "decode": 1e-12, "add": 1e-12}
    monkeypatch.setattr(break_even, "_prices", lambda *_: prices)
    keys = {
        "model": Choice("models", "lenet5"),
        "dataset": Choice("datasets", "digits"),
        "compression": Choice("compression", compression),
        "ranks": 8,
        "batch_per_rank": 1,
        "network": "ethernet-1g",
        "flops": 1e12,
    }
    spec = break_even.BreakEvenSpec(**keys)
    break_even.check(spec, [])
    assert [scheme.name for scheme in spec.aggregations] == expected
    best = simulated(1, FREE).run(break_even.program(spec, None))[0]
    each = []
    for scheme in spec.aggregations:
        alone = break_even.program(break_even.BreakEvenSpec(**keys, aggregation=scheme), None)
        each.append((simulated(1, FREE).run(alone)[0]["compressed_seconds"], scheme.name))
    assert (best["compressed_seconds"], best["aggregation"]) == min(each)


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"compression": "none"}, "compression: name a compressor"),
        ({"compression": "top_k", "aggregation": "ring"}, "compression: "),
        ({"compression": {"name": "threshold", "tau": 0.1}, "aggregation": "allgather"}, "compression: lengths"),
        ({"times": "run", "flops": 1e9}, "times: give at most one of"),
        ({"ranks": 1}, "ranks: must be at least 2"),
    ],
)
def test_a_set_up_that_cannot_be_simulated_is_refused(tmp_path, changed, message):
    case = {
        "kind": "break_even",
        "model": "lenet5",
        "dataset": "digits",
        "compression": "power_sgd",
        "ranks": 2,
        "batch_per_rank": 1,
        "network": "ethernet-1g",
        **changed,
    }

    def toml(value):
        if isinstance(value, dict):
            return "{" + ", ".join(f"{name} = {toml(one)}" for name, one in value.items()) + "}"
        return f'"{value}"' if isinstance(value, str) else str(value)

    file = tmp_path / "s.toml"
    lines = "\n".join(f"{name} = {toml(value)}" for name, value in case.items())
    file.write_text(f'[suite]\nname = "s"\nquestion = "?"\n[[case]]\n{lines}\n')
    with pytest.raises(suite.UsageError, match="case") as refused:
        suite.load(file)
    assert message in str(refused.value)
