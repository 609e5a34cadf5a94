"""Symmetric training steps: the ranks of one host stand for all, and steps take the time of simulating all ranks."""

import pytest

from hpcdl import registry, suite
from hpcdl.cases.simulation import step_simulation
from hpcdl.cases.simulation.step_simulation import Conditions, virtual_step
from hpcdl.fabric.vectors import equal_parts
from hpcdl.training.parts.traits import Strategy

SCHEMES = {"ring": "", "torus": "", "hierarchical": ", ranks_per_node = 4"}
CASE = """
[suite]
name = "s"
question = "?"
[[case]]
kind = "replay"
model = "lenet5"
dataset = "digits"
training = {{name = "{}"{}}}
aggregation = {{name = "{}"{}}}
ranks = {}
batch_per_rank = 2
flops = 1e11
network = "ethernet-10g"
ranks_per_host = {}
"""


def case(training, bucket, scheme, ranks, per_host=1):
    own = registry.settings_of(registry.find("training", training))
    given = f", bucket_bytes = {bucket}" if "bucket_bytes" in own else ", period = 3"
    text = CASE.format(training, given, scheme, SCHEMES.get(scheme, ""), ranks, per_host)
    return suite.parse(text, "s.toml").cases[0].spec


def step(spec, jitter=0.0):
    return virtual_step(spec, Conditions(spec.cluster, spec.compute_times, spec.images, jitter=jitter))


@pytest.fixture
def all_ranks(monkeypatch):
    def simulated(spec):
        with monkeypatch.context() as without:
            without.setattr(step_simulation, "_symmetry", lambda *_: None)
            return step(spec)

    return simulated


def symmetric():
    """Return the strategies that declare symmetry with their defaults."""
    return [
        name
        for name in registry.names("training")
        if registry.traits("training", name, Strategy).symmetric(
            registry.in_full(registry.find("training", name), {})
        )
    ]


def test_strategies_of_equal_work_declare_it():
    assert {"synchronous", "layerwise", "diloco"} <= {*symmetric()}


@pytest.mark.parametrize(
    ("training", "scheme"),
    [(name, scheme) for scheme in SCHEMES for name in symmetric() if name != "zero" or scheme == "ring"],
)
@pytest.mark.parametrize(("ranks", "per_host", "bucket"), [(8, 1, 0), (8, 4, 20_000), (12, 1, 50_000), (64, 4, 0)])
def test_representatives_take_the_time_of_all(training, scheme, ranks, per_host, bucket, all_ranks, monkeypatch):
    spec = case(training, bucket, scheme, ranks, per_host)
    exact, own = all_ranks(spec), step(spec)
    # unequal parts of few messages are simulated on all ranks, so that no time changes
    assert own.seconds == pytest.approx(exact.seconds, rel=1e-9)
    assert (own.messages, own.bytes_sent) == (exact.messages, exact.bytes_sent)
    monkeypatch.setattr(step_simulation, "MAX_UNEQUAL", 0)
    with equal_parts():
        equal = all_ranks(spec)
    stood = step(spec)
    if scheme == "ring" or training != "layerwise":
        assert stood.simulated_ranks == per_host
    # words that layerwise agrees on are sent along no side of a torus
    wanted = exact if stood.simulated_ranks == ranks else equal
    assert stood.seconds == pytest.approx(wanted.seconds, rel=1e-9)
    assert stood.bytes_sent == wanted.bytes_sent


def test_equal_parts_need_one_rank(all_ranks):
    spec = case("synchronous", 0, "ring", 10)
    assert spec.gradient_bytes // 4 % 10 == 0
    found = step(spec)
    assert found.simulated_ranks == 1
    assert found.seconds == pytest.approx(all_ranks(spec).seconds, rel=1e-9)


def test_steps_without_symmetry_are_simulated_on_all_ranks():
    assert step(case("synchronous", 0, "ring", 10), jitter=0.1).simulated_ranks == 10
    assert step(case("synchronous", 0, "tree", 10)).simulated_ranks == 10
