"""Networks known by their sizes: tables of layers, and networks of published dimensions."""

import dataclasses
import inspect
from dataclasses import replace

import pytest
from contract.cases import case_of

from hpcdl import registry, suite
from hpcdl.cases.keys.compute_times import flop_of
from hpcdl.cases.keys.key import Choice
from hpcdl.cases.parts import step_simulation
from hpcdl.cases.parts.step_simulation import Conditions, virtual_step
from hpcdl.cases.replay import ReplaySpec
from hpcdl.cli import main
from hpcdl.fabric.network import Link, Network
from hpcdl.fabric.virtual.clocks import simulated
from hpcdl.models.layers import MAX_LAYERS, OFFERS, read_table, table_text
from hpcdl.nn.layer import SizedLayer
from hpcdl.nn.volumes import volumes
from hpcdl.prediction.steps import _compute_seconds
from hpcdl.trace.files import MAX_TEXT

HEAD = "name,parameters,activations,forward_flop,backward_flop\n"


def test_volumes_of_networks_of_published_dimensions_are_those_of_their_layers():
    for name in {*OFFERS} - {"layers"}:
        model = registry.find("models", name)
        layers, shape = model(), inspect.signature(model).parameters["shape"].default
        found = volumes(layers, shape, 1)
        assert found.parameters == sum(layer.parameters for layer in layers)
        assert found.forward_backward_flop == sum(sum(flop_of(layer, shape)) for layer in layers)
        assert "replays and predictions only" in registry.summary(model)


def test_weights_of_an_lstm_are_used_once_a_word():
    layers = {layer.name: layer for layer in registry.find("models", "lstm_translator")()}
    for name, flop in {"encoder1": 2 * 25, "decoder4": 2 * 29, "target_embeddings": 0, "head": 2 * 29}.items():
        assert layers[name].forward_flop == flop * layers[name].parameters
    recurrent = [layer.parameters for name, layer in layers.items() if name[-1].isdecimal()]
    assert sum(recurrent) == 64_000_000, "the paper's pure recurrent connections"


@pytest.fixture
def table(tmp_path):
    """Return a function that writes a text and returns its path."""

    def write(text):
        path = tmp_path / "net.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


WAYS = [
    {"aggregation": "ring"},
    {"aggregation": "halving_doubling"},
    {"training": "layerwise", "aggregation": "double_tree"},
    {"training": {"name": "pipeline", "microbatches": 4}, "mesh": {"pipeline": 3}},
    {"aggregation": "allgather", "compression": {"name": "top_k", "density": 0.01}},
]


@pytest.mark.parametrize("way", WAYS)
def test_a_network_and_its_table_have_equal_messages_bytes_and_seconds(way, tmp_path, monkeypatch):
    assert main(["layers", "googlenet", "-o", str(tmp_path / "g.csv")]) == 0
    monkeypatch.setenv("HPCDL_DATA", str(tmp_path))
    worlds, steps = [], []
    noted = lambda *one, **more: worlds.append(simulated(*one, **more)) or worlds[-1]
    monkeypatch.setattr(step_simulation, "simulated", noted)
    for model in ("googlenet", {"name": "layers", "path": "g.csv"}):
        spec = case_of("replay", model=model, flops=1e12, ranks=6, network="gemini", **way).spec
        steps.append(virtual_step(spec, Conditions(spec.cluster, spec.compute_times, spec.images, 1 << 20)))
    assert steps[0].seconds == steps[1].seconds > 0
    traffic = [(world.messages, world.bytes) for world in worlds]
    half = len(traffic) // 2
    assert traffic[:half] == traffic[half:]
    assert sum(worlds[-1].bytes) > 0


def replay(path, **keys):
    """Return a replay of the network of a table of layers."""
    return case_of("replay", model={"name": "layers", "path": str(path)}, **keys)


SECONDS = """# recorded by hand
name,parameters,activations,forward_seconds,backward_seconds,batch,update_seconds,group
stem,100,8,0.25,0.5,2,0.125,
"block, 1",3000,4,1,2,4,,blocks
"""


def test_a_table_of_seconds_gives_the_times_of_a_replay(table):
    path = table(SECONDS)
    assert [layer.group for layer in read_table(path)] == [None, "blocks"]
    times = replay(path, flops=None).spec.compute_times
    assert times.step_seconds(6) == 6 * (0.75 / 2 + 3 / 4) + 0.125
    assert times.seconds("update stem", 6) == 0.125
    with pytest.raises(suite.UsageError, match="flops: the table of layers has no FLOP of 'stem'; leave this key"):
        replay(path)
    with pytest.raises(suite.UsageError, match="device: give exactly one of device, flops, times"):
        replay(table(HEAD + "a,1,1,1,1\n"), flops=None)


def test_a_table_may_have_another_separator(table):
    text = f'# a,b,c\n{HEAD}"conv 1",1000,500,2000,4000\nfc,3000,10,6000,12000\n'
    for separator in ";\t":
        layers = read_table(table(text.replace(",", separator)))
        assert [(layer.name, layer.backward_flop) for layer in layers] == [("conv 1", 4000), ("fc", 12000)]


@pytest.mark.parametrize(
    ("training", "settings", "seconds"),
    [
        *((name, {}, 0.5) for name in ("synchronous", "layerwise", "parameter_averaging", "d_psgd", "ad_psgd")),
        *((name, {}, 0.5) for name in ("stochastic_gradient_push", "synchronous_elastic_averaging", "softsync")),
        *((name, {}, 0.5) for name in ("m_synchronous", "update_broadcast")),
        ("diloco", {"period": 2}, 0.5),
        ("elastic_averaging", {"period": 1}, 0.5),
        ("zero", {"stage": 1}, 0.125),
        ("zero", {"stage": 3}, 0.125),
        ("zero", {"stage": 2, "ranks_per_node": 2}, 0.25),
        *((name, {}, 2.0) for name in ("asynchronous", "downpour", "ssp")),
        ("asynchronous", {"servers": 2}, 1.0),
        ("asynchronous", {"dedicated": True}, 1.5),
        ("ssp", {"push": "updates"}, 0.5),
    ],
)
@pytest.mark.parametrize("times", [(0.25, 0.25, ""), ("", 0.5, 0), (0.25, "", 0.25)])
def test_every_strategy_takes_the_stated_time_of_the_optimizer(training, settings, seconds, times, table):
    """Also with ``flops``; four ranks, messages and all else without time, and a server that updates for each."""
    rows = [f"{row},1,1,1,{own}\n" for row, own in zip(("a,3000", "b,988", "rest,12"), times, strict=True)]
    path = table(f"{HEAD.strip()},update_seconds\n{''.join(rows)}")
    model, choice = Choice("models", "layers", {"path": str(path)}), Choice("training", training, settings)
    spec = ReplaySpec(model=model, training=choice, ranks=4, batch_per_rank=1, flops=1e15, network="gemini")
    stages = spec.compute_times.of_stages(spec.layers, [slice(0, 1), slice(1, 3)])
    assert sum(stage.per_call["update"] for stage in stages) == pytest.approx(0.5)
    free = Network("free", Link(0, 0), "none", gamma=0)
    conditions = Conditions(free, spec.compute_times, spec.images)
    step = virtual_step(spec, conditions, 8)
    total = step.steps["end"].max() * 1e-9 / (1 + step.steps["step"].max())
    assert (step.seconds if len(step.cycles) else total) == pytest.approx(seconds, rel=1e-4)
    assert _compute_seconds(spec, conditions) < 1.001 * seconds, "the rest would be exposed communication"


BAD = {
    "": "column 'name' is missing",
    "name,parameters,forward_flop,backward_flop\n": "column 'activations' is missing",
    "name,parameters,activations\na,1,1\n": "column 'forward_flop' is missing",
    "name,parameters,activations,forward_seconds,backward_seconds\n": "column 'batch' is missing",
    HEAD.replace("\n", ",gruop\n"): "column 'gruop' is unknown or there twice; did you mean 'group'?",
    HEAD.replace("\n", ",name\n"): "line 1: column 'name' is unknown or there twice",
    HEAD: "parameters: a network needs some",
    HEAD + "a,1,1,1\n": "line 2: has 4 cells, but there are 5 columns",
    HEAD + "a,1,1,1,1\n# b\nb,-2,1,1,1\n": "line 4: parameters: must be a whole number from 0, not '-2'",
    HEAD + "a,1.5,1,1,1\n": "line 2: parameters: must be a whole number from 0, not '1.5'",
    HEAD + "a,1,,1,1\n": "line 2: activations: must be a whole number from 0, not ''",
    HEAD + ",1,1,1,1\n": "line 2: name: must be a text, not ''",
    HEAD + "a,1,1,1,1\nb,1,1,1,1\na,1,1,1,1\n": "line 4: name: 'a' is there twice, ",
    SECONDS.replace(",2,0.125", ",0,0.125"): "line 3: batch: must be a whole number from 1, not '0'",
    HEAD + "".join(f"a{i},1,1,1,1\n" for i in range(MAX_LAYERS + 1)): "is one of more than 10000 layers",
    HEAD + "a,1,1,1,1\n" * (MAX_TEXT // 10): "larger than 4194304 bytes",
    b"\x89PNG\xff\xfe": "cannot be read: not UTF-8 text",
    HEAD + "a" * 200_000 + ",1,1,1,1\n": "line 2: field larger than field limit",
}


def test_a_bad_table_is_refused_in_one_line_with_file_line_and_column(table, tmp_path):
    for text, reason in BAD.items():
        path = table(text)
        with pytest.raises(suite.UsageError) as refused:
            replay(path)
        message = str(refused.value)
        assert f"model: {path}: " in message
        assert reason in message
        assert "\n" not in message
    for path, reason in [(tmp_path, "Is a dir"), (tmp_path / "no.csv", "No such file"), ("", "path must be")]:
        with pytest.raises(suite.UsageError, match=f"model: .*{reason}"):
            replay(path)


def test_a_table_is_read_as_it_was_written(table):
    """Names that would be comments, numbers that a float rounds, and columns that are stated for some layers only."""
    layers = [
        SizedLayer("#1", 2**53 + 1, 2**60 + 1, 1, 2, group="a, b"),
        SizedLayer('"c"', 1, 1, 0, 0, 0.1, 1e-300, 3, update_seconds=0.0),
    ]
    for some in (layers[:1], layers[1:], [layers[0], replace(layers[1], name="d")]):
        rows = [replace(layer, forward_seconds=0.5, backward_seconds=0.5, batch=1) for layer in some]
        assert read_table(table(table_text(rows))) == rows
    assert table_text(layers[:1]).splitlines()[1].startswith('"#1",')


def test_every_column_is_a_field():
    columns = {*HEAD.strip().split(","), *SECONDS.splitlines()[1].split(",")}
    assert {field.name for field in dataclasses.fields(SizedLayer)} == columns
