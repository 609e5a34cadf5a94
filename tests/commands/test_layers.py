"""hpcdl layers: tables of models, runs and traces of other tools."""

import csv
import gzip
import json
import re
from pathlib import Path

import pytest
from google.protobuf import proto

import hpcdl.docs
from hpcdl.cli import main
from hpcdl.models.layers import read_table
from hpcdl.trace.chakra import COLLECTIVE, COMPUTING, message_types


@pytest.fixture
def table(tmp_path, capsys):
    """Return a function that writes the table of a source: its layers by name, and the printed lines."""

    def write(*words):
        assert main(["layers", *map(str, words), "-o", str(tmp_path / "t.csv")]) == 0
        return {
            layer.name: layer for layer in read_table(tmp_path / "t.csv")
        }, capsys.readouterr().out.splitlines()

    return write


def test_of_a_model(table):
    layers, lines = table("lenet5")
    assert [*layers][:2] == ["conv1", "pool1"]
    assert (layers["conv1"].parameters, layers["conv1"].activations) == (520, 24 * 24 * 20)
    assert layers["conv1"].backward_flop == 2 * layers["conv1"].forward_flop == 2 * 2 * 24 * 24 * 20 * 25
    assert lines[-1].split() == ["all", "7", "layers", "1.724", "0.079", "0.014", "7.979", "-"]
    short, long = (table("llama3_8b", "--shape", tokens)[0]["block1_feed_forward"] for tokens in (512, 1024))
    assert long.parameters == short.parameters
    assert long.forward_flop == 2 * short.forward_flop
    assert long.group == "block1"


def test_of_a_run_with_its_times(table, hpcdl):
    suite = hpcdl.suite(
        "[[case]]\nkind = 'train'\nmodel = 'lenet5'\ndataset = 'digits'\nlearning_rate = 0.01\nranks = 1\n"
        "global_batch = 16\nsteps = 4"
    )
    assert hpcdl("run", suite, "-o", "o").returncode == 0
    layers, _ = table(hpcdl.folder / "o")
    conv = layers["conv2"]
    assert conv.batch == 16
    assert min(conv.forward_seconds, conv.backward_seconds, conv.update_seconds, conv.forward_flop) > 0
    assert layers["rest"].forward_seconds > 0


@pytest.mark.parametrize(
    ("model", "shape"), [("vit_b16", "22"), ("llama3_8b", "0"), ("lenet5", "2x2x1"), ("lenet5", "axb")]
)
def test_a_shape_that_does_not_fit_is_refused_in_one_line(model, shape, capsys):
    try:
        code = main(["layers", model, "--shape", shape])
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    assert capsys.readouterr().err.count("\n") == 1


def marks(steps):
    """Return the events of marks by hand: of each step its beginning (us), then (time, name) of its other marks."""
    return [
        {"ph": "X", "cat": "user_annotation", "name": f"hpcdl {name}", "ts": begin + at, "dur": 1}
        for begin, step in steps
        for at, name in ((0, "input"), *step)
    ]


STEP = [
    (10, "forward a b"),
    (40, "output 6 40 4 a b"),
    (45, "forward c"),
    (65, "output 5 8 4 c"),
    (80, "backward c"),
    (120, "backward a b"),
    (200, "update"),
]


def test_of_a_profile_by_hand(table, tmp_path):
    """The first step does not count; nor do events of other kinds."""
    other = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 30, "dur": 5}
    events = [*marks([(0, [(90, "forward c")]), (1000, STEP), (2000, STEP), (2250, [])]), other, {"ph": "M"}]
    events[1:3] = events[2:0:-1]
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": events}))
    layers, _ = table(tmp_path / "t.json")
    assert [*layers] == ["a b", "c", "rest"]
    first, second, rest = layers.values()
    assert (first.parameters, first.activations, first.batch) == (6, 10, 4)
    assert first.forward_seconds == pytest.approx(30e-6)
    assert first.backward_seconds == pytest.approx(80e-6)
    assert second.forward_seconds == pytest.approx(20e-6)
    assert second.backward_seconds == pytest.approx(40e-6)
    assert rest.forward_seconds == pytest.approx((10 + 5 + 15) * 1e-6)
    assert rest.update_seconds == pytest.approx((800 + 50) / 2 * 1e-6)


def recipe():
    """Return the lines of the page that record a network in PyTorch."""
    text = (Path(hpcdl.docs.__path__[0]) / "networks.md").read_text(encoding="utf-8")
    return re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]


def test_of_a_profile_that_the_page_records(table, tmp_path):
    torch = pytest.importorskip("torch")
    names: dict = {}
    exec(recipe(), names)
    nn = torch.nn
    torch.set_num_threads(2)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(4 * 36, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    images, labels = torch.zeros(5, 1, 8, 8), torch.zeros(5, dtype=torch.long)

    def step():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    names["record"](model.named_children(), optimizer, step, str(tmp_path / "t.json"), steps=3)
    layers, lines = table(tmp_path / "t.json")
    assert [*layers] == ["0", "1", "2", "3", "rest"]
    assert [layer.parameters for layer in layers.values()] == [40, 0, 0, 1450, 0]
    assert [layer.activations for layer in layers.values()] == [144, 144, 144, 10, 0]
    assert all(layer.batch == 5 and layer.forward_seconds > 0 for layer in layers.values())
    assert all(layers[name].backward_seconds > 0 for name in "0123")
    assert layers["rest"].update_seconds > 0
    assert lines[-1].startswith("all 5 layers")


def test_of_a_chakra_trace(table, tmp_path, capsys):
    types = message_types()

    def write(*nodes):
        with (tmp_path / "x.et").open("wb") as file:
            proto.serialize_length_prefixed(types["GlobalMetadata"](version="0.0.4"), file)
            for name, kind, micros, size in nodes:
                node = types["Node"](name=name, type=kind, duration_micros=micros)
                node.attr.add(name="comm_size", int64_val=size)
                proto.serialize_length_prefixed(node, file)
        return tmp_path / "x.et"

    path = write(
        ("COMP_NODE_conv_FWD", COMPUTING, 10, 0),
        ("COMP_NODE_fc_FWD", COMPUTING, 30, 0),
        ("COMP_NODE_fc_BWD_WG", COMPUTING, 5, 0),
        ("COMM_COLL_NODE_fc_ALLREDUCE", COLLECTIVE, 0, 4000),
        ("COMP_NODE_fc_BWD_IG", COMPUTING, 7, 0),
        ("COMM_COLL_NODE_conv_ALLREDUCE", COLLECTIVE, 0, 400),
    )
    layers, lines = table(path)
    assert {name: layer.parameters for name, layer in layers.items()} == {"conv": 100, "fc": 1000}
    assert layers["fc"].backward_seconds == pytest.approx(12e-6)
    assert lines[-1] == "warning: the source states no activations: fill in the column"
    ours = write(
        *((f"forward {name}", COMPUTING, 10 * (1 + step), 0) for step in range(3) for name in ("a", "b c"))
    )
    assert main(["layers", str(ours), "-o", str(tmp_path / "o.csv")]) == 0
    assert "warning: the source states no parameters" in capsys.readouterr().out
    rows = csv.DictReader((tmp_path / "o.csv").read_text().splitlines())
    assert {row["name"]: round(1e6 * float(row["forward_seconds"])) for row in rows} == {"a": 20, "b c": 20}


BAD = {
    "lenett": "unknown 'lenett'; did you mean 'lenet5'?",
    "no.json": "no.json: missing",
    "empty.json": "no trace of a PyTorch profiler with marks of layers: ",
    "deep.json": "no trace of a PyTorch profiler with marks of layers: ",
    "list.json": "no two steps with marks of layers; `hpcdl help networks` records them",
    "numbers.json": "traceEvents[0]: not a dict",
    "object.json": "traceEvents: not a list",
    "records.json.gz": "it has the records of a run, which lack times of layers; give the folder of the run",
    "plain.json": "no two steps with marks of layers; `hpcdl help networks` records them",
    "mark.json": "no trace of a PyTorch profiler with marks of layers: ",
    "binary.et": "no Chakra trace: ",
    "empty.et": "no ",
    "text.txt": "text.txt: not a trace of hpcdl",
    "binary.csv": "cannot be read: not UTF-8 text",
}
CONTENTS = {
    "empty.json": b"",
    "deep.json": b"[" * 100_000,
    "list.json": b"[]",
    "numbers.json": b"[1, 2]",
    "object.json": b"{}",
    "records.json.gz": gzip.compress(b'{"hpcdl records of schema": 6}'),
    "plain.json": b'{"traceEvents": []}',
    "mark.json": json.dumps({"traceEvents": marks([(0, [(1, "output 6 40 0 a")]), (9, [])])}).encode(),
    "binary.et": b"\xff" * 100,
    "empty.et": b"",
    "text.txt": b"text",
    "binary.csv": b"\xff",
}


@pytest.mark.parametrize("source", BAD)
def test_a_bad_source_is_refused_in_one_line(source, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    if source in CONTENTS:
        (tmp_path / source).write_bytes(CONTENTS[source])
    assert main(["layers", source]) == 2
    message = capsys.readouterr().err
    assert message.startswith(f"hpcdl: {source}: ")
    assert BAD[source] in message
    assert message.count("\n") == 1
