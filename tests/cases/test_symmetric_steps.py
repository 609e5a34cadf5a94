"""Steps by symmetry: the ranks of one host stand for all where their programs show it, and never otherwise."""

import random
from dataclasses import replace

import numpy as np
import pytest

from hpcdl import registry
from hpcdl.cases.keys.key import Choice
from hpcdl.cases.parts import step_simulation
from hpcdl.cases.parts.step_simulation import Conditions, virtual_step
from hpcdl.cases.replay import ReplaySpec
from hpcdl.fabric.network import NETWORKS, Link
from hpcdl.training.parts.mesh import Mesh

STRATEGIES = [name for name in registry.names("training") if name != "sandblaster"]  # losses decide its messages
AGGREGATING = ["diloco", "layerwise", "synchronous", "zero"]
OTHERS = {"auto", "nccl", "gtopk", "ok_topk", "sparcml"}  # measure, need a device, or sum entries only
SCHEMES = [name for name in registry.names("aggregation") if name not in OTHERS]
GRAPHS = ["ring", "torus", "exponential", "complete", "random"]


def table(path, parameters, flop=10**6, update=""):
    """Write a table of layers and return the model; ``parameters``: of each layer."""
    rows = [f"fc{n},{own},7,{flop},{2 * flop},{update}" for n, own in enumerate(parameters)]
    head = "name,parameters,activations,forward_flop,backward_flop,update_seconds"
    path.write_text("\n".join([head, *rows, ""]), encoding="utf-8")
    return Choice("models", "layers", {"path": str(path)})


def case(model, training, scheme, ranks, **keys):
    """Return a case of the strategy and the scheme, each given as (name, settings)."""
    parts = {"training": Choice("training", *training), "aggregation": Choice("aggregation", *scheme)}
    return ReplaySpec(model=model, **parts, ranks=ranks, batch_per_rank=2, network="ethernet-10g", **keys)


def step(spec, per_host=1, bucket=None, network=NETWORKS["ethernet-10g"]):
    return virtual_step(spec, Conditions(network.on(per_host), spec.compute_times, spec.images, bucket))


@pytest.fixture
def all_ranks(monkeypatch):
    """Return a function that simulates a step as :func:`step` does, on all ranks."""

    def simulated(*arguments, **keys):
        with monkeypatch.context() as without:
            without.setattr(step_simulation, "by_symmetry", lambda *_: None)
            return step(*arguments, **keys)

    return simulated


def drawn(path, seed):
    """Return a case with random settings, ranks to a host, bucket size and network; some cannot run."""
    draw = random.Random(seed)
    ranks = draw.choice([2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 15, 16, 18, 20, 24])
    divisors = [divisor for divisor in range(1, ranks + 1) if ranks % divisor == 0]
    name, period, stage = draw.choice([*STRATEGIES, *AGGREGATING * 6]), draw.randint(1, 4), draw.randint(1, 3)
    settings = {
        "ad_psgd": {"graph": draw.choice(GRAPHS)},
        "d_psgd": {"graph": draw.choice(GRAPHS), "mixing": draw.choice(["overlap", "after"])},
        "diloco": {"period": period, "fragments": draw.randint(1, period), "delay": draw.randrange(period)},
        "downpour": {"n_fetch": draw.randint(1, 2), "n_push": draw.randint(1, 2)},
        "elastic_averaging": {"period": period},
        "layerwise": {"updates": draw.choice(["ranks", "ranks", "server"])},
        "parameter_averaging": {"period": period},
        "pipeline": {"microbatches": 2},
        "stochastic_gradient_push": {"graph": draw.choice(GRAPHS)},
        "synchronous_elastic_averaging": {"period": period},
        "zero": {"stage": stage, "ranks_per_node": draw.choice([None, *divisors])},
    }.get(name, {})
    if "bucket_bytes" in registry.settings_of(registry.find("training", name)) and settings.get("stage") != 3:
        settings["bucket_bytes"] = draw.choice([None, 0, 1024, 3000, 20_000])
    scheme = draw.choice([*["ring"] * 9, *["torus"] * 5, *["hierarchical"] * 5, "direct", "circulant", *SCHEMES])
    parts = {"inner": draw.choice(["ring", "ring", "direct", "tree"]), "outer": draw.choice(["ring", "tree"])}
    of_scheme = {
        "hierarchical": {"ranks_per_node": draw.randint(1, ranks), **parts},
        "torus": {"rows": draw.choice(divisors)},
    }.get(scheme, {})
    multiple = draw.choice([*[ranks] * 5, 1])  # of all layers: else parts of a vector are unequal
    layers = [multiple * draw.randint(1, 3000 // multiple) for _ in range(draw.randint(1, 5))]
    model = table(path, layers, draw.choice([0, 10**4, 10**6, 10**7]), draw.choice(["", "1e-5", "1e-3"]))
    stages = [divisor for divisor in divisors if 1 < divisor <= len(layers)]
    keys = {"mesh": Mesh(pipeline=draw.choice(stages))} if name == "pipeline" and stages else {}
    inside = Link(draw.choice([0.0, 5e-7, 1e-6]), draw.choice([1 / 10e9, 0.0, 1 / 3e9]))
    network = replace(NETWORKS[draw.choice(["ethernet-10g", "infiniband-hdr", "gemini"])], inside=inside)
    place = (draw.choice([1, 2, 3, *divisors, *divisors]), draw.choice([None, 1500, 6000]), network)
    return case(model, (name, settings), (scheme, of_scheme), ranks, flops=1e12, **keys), *place


def results(found):
    times = found.steps["end"].max() - found.steps["begin"].min()
    return [np.nan_to_num(found.seconds), times, found.bytes_sent, found.messages, found.bytes_per_host]


@pytest.mark.parametrize("seeds", [range(40), pytest.param(range(40, 2400), marks=pytest.mark.grid)])
def test_simulations_by_symmetry_equal_those_of_all_ranks(seeds, tmp_path, all_ranks):
    settings, stood = 0, 0
    for seed in seeds:
        setting = drawn(tmp_path / "net.csv", seed)
        try:
            exact = all_ranks(*setting)
        except ValueError:  # settings that cannot run
            continue
        own = step(*setting)
        assert results(own) == pytest.approx(results(exact), rel=1e-9), f"seed {seed}"
        settings += 1
        stood += own.simulated_ranks < setting[0].ranks
    assert settings >= 0.8 * len(seeds)
    assert stood > 0.1 * settings


def test_nodes_that_hosts_cut_and_ranks_that_differ_have_no_symmetry(tmp_path, all_ranks):
    """Nodes of 3 ranks on hosts of 2: in one host's place all ranks run; nodes of 4 move with the hosts."""
    for size, simulated in ((3, 12), (4, 2), (6, 2), (12, 2)):
        model, training = table(tmp_path / "net.csv", [12_000] * 5), {"stage": 3, "ranks_per_node": size}
        spec = case(model, ("zero", training), ("ring", {}), 12, flops=1e11)
        own = step(spec, 2)
        assert results(own) == pytest.approx(results(all_ranks(spec, 2)), rel=1e-9)
        assert own.simulated_ranks == simulated
    spec = case(table(tmp_path / "small.csv", [120]), ("synchronous", {}), ("ring", {}), 10, flops=1e11)
    conditions = Conditions(spec.cluster, spec.compute_times, spec.images)
    tree = replace(spec, aggregation=Choice("aggregation", "tree"))
    for one, jitter, simulated in ((spec, 0.0, 1), (spec, 0.1, 10), (tree, 0.0, 10)):
        assert virtual_step(one, replace(conditions, jitter=jitter)).simulated_ranks == simulated


def test_messages_that_begin_at_once_take_turns_in_one_order_on_all_hosts(tmp_path, all_ranks):
    """Buckets go around a ring, and the words by which ``layerwise`` agrees on their order the other way."""
    model, network = table(tmp_path / "net.csv", [1152]), NETWORKS["infiniband-hdr"]
    spec = case(model, ("layerwise", {"bucket_bytes": 1024}), ("ring", {}), 3, flops=1e11)
    own = step(spec, network=network)
    assert results(own) == pytest.approx(results(all_ranks(spec, network=network)), rel=1e-12)
    assert own.simulated_ranks == 1
