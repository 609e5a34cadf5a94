"""hpcdl layers: tables of models, runs and traces of other tools."""

import gzip
import json
import lzma
import re
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest
from google.protobuf import proto

import hpcdl.docs
from hpcdl.cases.keys.compute_times import measured_trainings
from hpcdl.cli import main
from hpcdl.models.layers import read_table
from hpcdl.trace.export import COLLECTIVE, COMPUTING, message_types
from hpcdl.trace.schema import read


@pytest.fixture
def table(tmp_path, capsys):
    """Return a function that writes the table of a source: its layers by name, and the printed lines."""

    def write(*words):
        assert main(["layers", *map(str, words), "-o", str(tmp_path / "t.csv")]) == 0
        layers = {layer.name: layer for layer in read_table(tmp_path / "t.csv")}
        return layers, capsys.readouterr().out.splitlines()

    return write


def test_of_a_model(table):
    layers, lines = table("lenet5")
    assert [*layers][:2] == ["conv1", "pool1"]
    assert (layers["conv1"].parameters, layers["conv1"].activations) == (520, 24 * 24 * 20)
    assert layers["conv1"].backward_flop == 2 * layers["conv1"].forward_flop == 2 * 2 * 24 * 24 * 20 * 25
    text = " ".join(lines)
    assert "LeNet-5 has 7 layers and 431,080 parameters (1.72 MB in float32)." in text
    assert "A sample takes 0.0138 GFLOP (7.98 FLOP per byte of parameters) and 0.0788 MB for outputs." in text
    assert ["fc1", "1.60", "0.00200", "0.00240", "1.50"] in [line.split() for line in lines]
    short, long = (table("llama3_8b", "--shape", tokens)[0]["block1_feed_forward"] for tokens in (512, 1024))
    assert long.parameters == short.parameters
    assert long.forward_flop == 2 * short.forward_flop
    assert long.group == "block1"


def test_of_a_run_with_its_times_and_of_its_chakra_trace(table, hpcdl, refused):
    suite = hpcdl.suite(
        "[[case]]\nkind = 'train'\nmodel = 'lenet5'\ndataset = 'digits'\nlearning_rate = 0.01\nranks = 1\n"
        "global_batch = 16\nsteps = 4"
    )
    assert hpcdl("run", suite, "-o", "o").returncode == 0
    layers, _ = table(hpcdl.folder / "o")
    conv = layers["conv2"]
    assert conv.batch == 16
    assert min(conv.forward_seconds, conv.backward_seconds, conv.update_seconds, conv.forward_flop) > 0
    assert conv.forward_seconds != conv.backward_seconds
    assert layers["rest"].forward_seconds > 0
    ((_, _, samples, times),) = measured_trainings(read(hpcdl.folder / "o"), [0])
    seconds = samples * sum(sum(layer.seconds) for layer in layers.values())
    updates = sum(layer.update_seconds or 0 for layer in layers.values())
    assert seconds + updates == pytest.approx(times.step_seconds(samples))
    trace = hpcdl.folder / "et" / "hpcdl.0.et"
    assert main(["trace", str(hpcdl.folder / "o"), "--format", "chakra", "-o", str(trace.parent)]) == 0
    again, _ = table(trace)
    assert again == layers
    said = refused("layers", trace, "--batch", 3)
    assert "--batch is for Chakra traces of other tools: this one needs none" in said


STEP = {
    10: "forward a b",
    40: "outputs 6 40 a b",
    45: "forward c",
    65: "outputs 5 8 c",
    80: "backward c",
    120: "backward a b",
    200: "update",
    250: "step 4 15 0",
}
OLDER = {at: name for at, name in {**STEP, 40: "output 6 40 4 a b", 65: "output 5 8 4 c"}.items() if at < 250}


def write_marks(path, *steps):
    """Write a profile by hand, whose steps begin at 0, 1000, 2000 us; each has its marks by time from its begin."""
    events = [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 30, "dur": 5}, {"ph": "M"}]
    for number, step in enumerate(steps):
        for at, name in {0: "input", **step}.items():
            mark = {"ph": "X", "cat": "user_annotation", "name": f"hpcdl {name}", "ts": 1000 * number + at}
            events.insert(0, {**mark, "dur": 1, "pid": 1})
    path.write_text(json.dumps({"traceEvents": events}))
    return path


@pytest.mark.parametrize(("step", "unused"), [(STEP, 4), (OLDER, 0)])
def test_of_a_profile_by_hand(step, unused, table, tmp_path):
    """The first step does not count, nor one that a window cut, events of other kinds, and marks after a step."""
    cut, evaluated = {90: "forward c"}, {**step, 900: "forward c"} if unused else step
    layers, _ = table(write_marks(tmp_path / "t.json", cut, step, evaluated, step, {}))
    assert [*layers] == ["a b", "c", "rest"]
    first, second, rest = layers.values()
    assert (first.parameters, first.activations, first.batch) == (6, 10, 4)
    assert first.forward_seconds == pytest.approx(30e-6)
    assert first.backward_seconds == pytest.approx(80e-6)
    assert second.forward_seconds == pytest.approx(20e-6)
    assert second.backward_seconds == pytest.approx(40e-6)
    assert (rest.parameters, rest.forward_seconds) == (unused, pytest.approx((10 + 5 + 15) * 1e-6))
    assert rest.update_seconds == pytest.approx((50 if unused else 800) * 1e-6)


def networks(torch):
    """Return networks, their input, samples in a step, and parameters and activations of each layer by hand."""
    nn, linear = torch.nn, torch.nn.Linear

    class Net(nn.Module):
        def __init__(self, compute, **layers):
            super().__init__()
            self.compute = compute
            for name, layer in layers.items():
                setattr(self, name, layer)

        def forward(self, x):
            return self.compute(self, x)

    words, rows = torch.zeros(4, 50, dtype=torch.long), torch.zeros(32, 64)
    tied = Net(
        lambda net, x: net.head(net.body(net.emb(x))),
        emb=nn.Embedding(1000, 32),
        body=linear(32, 32),
        head=linear(32, 1000, bias=False),
    )
    tied.head.weight = tied.emb.weight
    two = [Net(lambda net, x: net.b(net.a(x).relu_()), a=linear(64, 256), b=linear(256, 10)) for _ in range(2)]
    two[0].a.requires_grad_(False)
    lstm = Net(lambda net, x: net.head(net.lstm(x)[1][0][-1]), lstm=nn.LSTM(16, 32), head=linear(32, 5))
    flat = Net(lambda net, x: net.head(net.emb(x).flatten(0, 1)), emb=nn.Embedding(100, 32), head=linear(32, 100))
    stages = Net(
        lambda net, x: net.head(net.stages[1](net.stages[0](x + net.token))),
        stages=nn.ModuleList([linear(64, 64), linear(64, 64)]),
        head=linear(64, 10),
        token=nn.Parameter(torch.zeros(64)),
    )
    heads = Net(lambda net, x: {"a": net.a(x), "b": [net.b(x)]}, a=linear(64, 8), b=linear(64, 4))
    loss = Net(lambda _, outputs: outputs["a"].mean() + outputs["b"][0].mean())
    scalar = Net(lambda net, x: net.loss(net.heads(x)), heads=heads, loss=loss)
    sequence = torch.zeros(50, 4, 16)
    return {
        "tied": (tied, words, 4, "emb 32000 1600, body 1056 1600, head 0 50000, rest 0 0"),
        "frozen": (two[0], rows, 32, "a 0 256, b 2570 10, rest 0 0"),
        "accumulation": (two[1], rows, 128, "a 16640 256, b 2570 10, rest 0 0"),
        "sequence first": (lstm, sequence, 4, "lstm 6400 1664, head 165 5, rest 0 0"),
        "flattened": (flat, words, 4, "emb 3200 1600, head 3300 5000, rest 0 0"),
        "ModuleList": (stages, rows, 32, "stages.0 4160 64, stages.1 4160 64, head 650 10, rest 64 0"),
        "dict and scalar": (scalar, rows, 32, "heads 780 12, loss 0 1, rest 0 0"),
    }


def record(torch, kind, path, before_update=lambda _: None):
    """Record a network by the page; return its samples and sizes as in :func:`networks`."""
    pytest.importorskip("torch._dynamo", reason="PyTorch without the packages that its optimizers need")
    text, names = (Path(hpcdl.docs.__path__[0]) / "models.md").read_text(encoding="utf-8"), {}
    exec(re.search(r"```python\n(.*?)```", text, re.DOTALL)[1], names)
    torch.set_num_threads(1)
    model, inputs, samples, sizes = networks(torch)[kind]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        for _ in range(samples // 32 or 1):
            model(inputs).mean().backward()
        before_update(model)
        optimizer.step()
        return samples

    names["record"](names["layers_of"](model), optimizer, step, str(path), steps=4)
    return samples, sizes


KINDS = ("tied", "frozen", "accumulation", "sequence first", "flattened", "ModuleList", "dict and scalar")


@pytest.mark.parametrize("kind", KINDS)
def test_of_a_profile_that_the_page_records(kind, table, tmp_path):
    """Sizes are exact; times add up to the file's median step."""
    path = tmp_path / "t.json.gz"
    samples, sizes = record(pytest.importorskip("torch"), kind, path)
    layers, lines = table(path)
    assert sizes == ", ".join(f"{name} {layer.parameters} {layer.activations}" for name, layer in layers.items())
    named = "warning: 64 parameters are in no layer: row 'rest'" in lines
    assert named == (kind == "ModuleList")
    assert {layer.batch for layer in layers.values()} == {samples}
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    marks = sorted((event["ts"], event["name"]) for event in events if event["name"].startswith("hpcdl "))
    ends = [at for at, name in marks if name.startswith(("hpcdl input", "hpcdl step"))]
    step = 1e-6 * median(end - begin for begin, end in list(pairwise(ends))[2::2])
    seconds = samples * sum(sum(layer.seconds) for layer in layers.values()) + layers["rest"].update_seconds
    assert seconds == pytest.approx(step)
    assert all(layer.forward_seconds > 0 for layer in layers.values())
    assert all(layers[name].backward_seconds > 0 for name in [*layers][:-1] if layers[name].parameters)


def test_a_profile_of_steps_that_wait_for_other_ranks_is_refused(tmp_path, refused):
    torch = pytest.importorskip("torch")
    distributed = torch.distributed
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        record(torch, "accumulation", tmp_path / "t.json", lambda net: distributed.all_reduce(net.a.weight.grad))
    finally:
        distributed.destroy_process_group()
    assert re.search(r"t\.json: steps wait for other ranks \(.*\): record", refused("layers", tmp_path / "t.json"))


LATER = {
    "batches of 4 and 3 samples: record equal ones": {250: "step 3 15 0"},
    "steps that train 15 and 14 parameters": {250: "step 4 14 0"},
    "marks of ranks 0 and 1: give the file of one": {250: "step 4 15 1"},
    "layer 'a b' gives 40 and 30 elements in steps of equal samples": {40: "outputs 6 30 a b"},
    "layer 'a b' has 6 and 5 parameters, or two layers have this name": {40: "outputs 5 40 a b"},
}
"""Marks in the place of others, or beside them, in a step's repetition only, and the reason why it is refused."""
TWICE = {40: "forward c", 45: "outputs 5 8 c", 65: "outputs 6 40 a b"}
AS_REST = {50: "outputs 5 8 c", 55: "forward rest", 65: "outputs 0 8 rest"}
AGAIN = {130: "forward c", 140: "output 5 8 4 c", 150: "backward c"}
OPEN = {
    "mark 'forward' of 'c' between forward and output of 'a b'": (STEP, TWICE),
    "mark 'backward' of 'a b' between forward and output of 'c'": (STEP, {100: "forward c"}),
    "layer 'c' has 2 forward and 1 backward marks": (STEP, {100: "forward c", 110: "outputs 5 8 c"}),
    "layer 'a b' has 1 forward and 0 backward marks": (STEP, {120: "other"}),
    "1 parameters of its layers are not the optimizer's": (STEP, {250: "step 4 10 0"}),
    "no two steps with marks of layers": (STEP, {250: "other"}),
    "steps of 0 samples": (STEP, {250: "step 0 15 0"}),
    "layer 'rest' has the name of the row": (STEP, AS_REST),
    "batches of 4 and 2 samples: record equal ones": (OLDER, {65: "output 5 8 2 c"}),
    "layer 'c' has 2 forward marks in a step whose samples are not stated": (OLDER, AGAIN),
    "layer 'c' may share its 6 parameters with another": (OLDER, {65: "output 6 8 4 c"}),
    "layer 'c' has 1 forward and 0 backward marks": (OLDER, {80: "other"}),
    "most of a step is in none of the layers": (OLDER, {20: "output 6 40 4 a b", 40: "", 100: "", 130: ""}),
}


def test_a_profile_that_leaves_sizes_or_times_open_is_refused_in_one_line(tmp_path, refused):
    for reason in (*LATER, *OPEN):
        step, others = OPEN.get(reason) or (STEP, LATER[reason])
        changed = dict(sorted({**step, **others}.items()))
        path = write_marks(tmp_path / "t.json", step, step if reason in LATER else changed, changed, {})
        assert f"t.json: {reason}" in refused("layers", path)
    path = write_marks(tmp_path / "t.json", *[STEP] * 3)
    path.write_text(path.read_text().replace('"pid": 1', '"pid": 2', 1))
    assert "t.json: marks of processes 2 and 1: give the file of one rank" in refused("layers", path)


def write_nodes(path, *nodes):
    """Write a Chakra trace of nodes: name, us, bytes of a collective, and the number of the node that it needs."""
    types = message_types()
    with path.open("wb") as file:
        proto.serialize_length_prefixed(types["GlobalMetadata"](version="0.0.4"), file)
        for number, (name, micros, size, *needs) in enumerate(nodes):
            node = types["Node"](id=number, name=name, duration_micros=micros, data_deps=needs)
            node.type = COLLECTIVE if size else COMPUTING
            if size:
                node.attr.add(name="comm_size", int64_val=size)
            proto.serialize_length_prefixed(node, file)
    return path


PASS = [
    *[("COMP_NODE_conv_FWD", 10, 0), ("COMM_COLL_NODE_conv_ALLREDUCE", 0, 88, 0), ("COMP_NODE_fc_FWD", 30, 0)],
    *[("COMP_NODE_fc_BWD_WG", 5, 0), ("COMM_COLL_NODE_fc_ALLREDUCE", 0, 4000), ("COMP_NODE_fc_BWD_IG", 7, 0)],
    *[("COMM_COLL_NODE_fc_ALLREDUCE", 0, 120, 5), ("COMP_NODE_conv_BWD_WG", 9, 0)],
    ("COMM_COLL_NODE_conv_REDUCESCATTER", 0, 400, 7),
]
"""Layers as Chakra's converter of text workloads writes them; activations and their gradients are summed, too."""


def test_of_a_chakra_trace(table, tmp_path):
    layers, lines = table(write_nodes(tmp_path / "x.et", *PASS), "--batch", 4)
    assert {name: layer.parameters for name, layer in layers.items()} == {"conv": 100, "fc": 1000}
    assert layers["fc"].backward_seconds == pytest.approx(12e-6)
    assert {layer.batch for layer in layers.values()} == {4}
    assert lines[-1] == "warning: the source states no activations: fill in the column"


def test_of_a_chakra_trace_without_gradients(tmp_path, capsys):
    names = ("forward a", "forward b c", "backward b c", "backward a")
    path = write_nodes(tmp_path / "x.et", *((name, 10 * step, 0) for step in (1, 2, 3) for name in names))
    assert main(["layers", str(path), "--batch", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "A sample takes 0.0800 ms." in lines
    assert [line.split()[-1] for line in lines if line[:2] in {"a ", "b "}] == ["0.0400", "0.0400"]
    assert "warning: the source states no parameters: fill in the column" in lines


OPEN_NODES = {
    "the samples of its forward passes are not stated: add --batch SAMPLES": (PASS, 0),
    "layers of one name, or forward passes that overlap": ([*PASS[:3], PASS[0], *PASS[3:]], 4),
    "no forward and backward nodes of each layer": (PASS[:6], 4),
    "'fc' has gradients of 4004 and 4000 bytes": ([*PASS[:4], ("COMM_COLL_NODE_fc_ALLREDUCE", 0, 4004), *PASS], 4),
}


def test_a_chakra_trace_that_leaves_sizes_open_is_refused_in_one_line(tmp_path, refused):
    for reason, (nodes, samples) in OPEN_NODES.items():
        path = write_nodes(tmp_path / "x.et", *nodes)
        assert f"x.et: {reason}" in refused("layers", path, *(["--batch", samples] if samples else []))


NO_PROFILE = "not a PyTorch profiler's trace with marks of layers: "
PACKED = lzma.compress(b'{"hpcdl records of schema": 6}')
BAD = {
    "lenett": ("unknown 'lenett'; did you mean 'lenet5'?", None),
    "no.json": ("no.json: missing", None),
    "empty.json": (NO_PROFILE, b""),
    "deep.json": (NO_PROFILE, b"[" * 100_000),
    "list.json": ("no two steps with marks of layers; `hpcdl help models` records them", b"[]"),
    "numbers.json": ("traceEvents[0]: not a dict", b"[1, 2]"),
    "object.json": ("traceEvents: not a list", b"{}"),
    "records.json.xz": ("it has the records of a run, which lack times of layers; give the folder", PACKED),
    "mark.json": (NO_PROFILE, b'[{"cat": "user_annotation", "name": "hpcdl outputs 6 a", "ts": 0}]'),
    "time.json": (
        "a mark has no finite time",
        b'[{"cat": "user_annotation", "name": "hpcdl input", "ts": 1e999}]',
    ),
    "binary.et": ("no Chakra trace: ", b"\xff" * 100),
    "empty.et": ("no ", b""),
    "text.txt": ("text.txt: not a trace of hpcdl", b"text"),
    "binary.csv": ("cannot be read: not UTF-8 text", b"\xff"),
}
"""Sources with the reason why they are refused; the contents of a file."""


def test_a_bad_source_is_refused_in_one_line(tmp_path, refused):
    for source, (reason, content) in BAD.items():
        if content is not None:
            (tmp_path / source).write_bytes(content)
        message = refused("layers", source)
        assert message.startswith(f"hpcdl: {source}: ")
        assert reason in message
