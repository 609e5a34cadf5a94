"""Times of layers by batch that come with hpcdl."""

from types import SimpleNamespace

import pytest
from suite.conftest import text_of

from hpcdl import suite
from hpcdl.cases.keys import shipped_times
from hpcdl.cases.keys.compute_times import DEVICES, recorded
from hpcdl.cases.keys.shipped_times import CORE, FILES, shipped

TEXT = """# 2026-01-02, one core of a Test, 0 of 2 cases disturbed
model,shape,label,1,2,4,64
lenet5,28x28x1,input,0,0,0,
lenet5,28x28x1,loss,1,1,1,
lenet5,28x28x1,forward conv1,10,12,20,
lenet5,28x28x1,backward conv1,20,24,40,
lenet5,28x28x1,update,5,5,5,
"""


@pytest.fixture
def table(tmp_path, monkeypatch):
    file = tmp_path / "cpu_times.csv"
    file.write_text(TEXT)
    monkeypatch.setitem(shipped_times.FILES, CORE, file)
    return file


@pytest.mark.parametrize(("images", "microseconds"), [(1, 10), (2, 12), (3, 16), (4, 20), (8, 40), (1024, 5120)])
@pytest.mark.usefixtures("table")
def test_a_call_is_interpolated_and_then_proportional(images, microseconds):
    times = shipped(CORE, "lenet5", (28, 28, 1), images)
    assert times.seconds("forward conv1", images) == pytest.approx(microseconds * 1e-6)
    assert times.seconds("backward conv1", images) == pytest.approx(2 * microseconds * 1e-6)
    assert times.seconds("update", images) == pytest.approx(5e-6)
    assert times.source.startswith("2026-01-02")


@pytest.mark.usefixtures("table")
def test_a_model_or_shape_without_times_has_none():
    assert shipped(CORE, "nin", (224, 224, 3), 1) is None
    assert shipped(CORE, "lenet5", (32, 32, 1), 1) is None


def replay(model, batch, **keys):
    table = {"kind": "replay", "model": model, "network": "gemini", "ranks": 2, "global_batch": batch, **keys}
    (case,) = suite.parse(text_of(table), "replays.toml").cases
    return case


def test_a_replay_without_times_takes_those_of_its_batch():
    case = replay("nin", 16)
    known = shipped(CORE, "nin", (224, 224, 3), 8)
    assert case.spec.compute_times.step_seconds(8) == known.step_seconds(8)
    assert case.fields()["compute_times"] == known.source


def test_a_device_that_was_measured_has_the_times_of_its_batch():
    case = replay("resnet50", 32, device="h200")
    known = shipped("h200", "resnet50", (224, 224, 3), 16)
    assert case.spec.compute_times.step_seconds(16) == known.step_seconds(16)
    assert case.fields()["compute_times"] == known.source
    assert set(FILES) - {CORE} <= set(DEVICES), "others are at a rate"


def test_a_trace_of_a_gpu_has_no_times_of_layers():
    """Its events are launches."""
    trained = {"kind": "train", "model": "lenet5", "image_shape": "28x28x1", "backend": "cupy(graphs=True)"}
    with pytest.raises(ValueError, match="no measured training of 'lenet5'"):
        recorded(SimpleNamespace(described=[trained], path="run"), "lenet5", (28, 28, 1))


@pytest.mark.parametrize("device", FILES)
def test_the_file_has_every_layer_at_each_batch_of_its_model(device):
    for (model, _), rows in shipped_times._rows(FILES[device]).items():
        assert len({tuple(known) for known in rows.values()}) == 1, model
        labels = {label.partition(" ")[0] for label in rows}
        assert {"forward", "backward", "update", "loss"} <= labels
        forward = {label.partition(" ")[2] for label in rows if label.startswith("forward")}
        assert forward == {label.partition(" ")[2] for label in rows if label.startswith("backward")}
