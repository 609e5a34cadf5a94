"""Times of layers on one core, by batch, that come with hpcdl."""

import pytest

from hpcdl import suite
from hpcdl.cases.keys import cpu_times
from hpcdl.cases.keys.cpu_times import shipped

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
    monkeypatch.setattr(cpu_times, "FILE", file)
    cpu_times._rows.cache_clear()
    yield file
    cpu_times._rows.cache_clear()


@pytest.mark.parametrize(("images", "microseconds"), [(1, 10), (2, 12), (3, 16), (4, 20), (8, 40), (1024, 5120)])
@pytest.mark.usefixtures("table")
def test_a_call_is_interpolated_and_then_proportional(images, microseconds):
    times = shipped("lenet5", (28, 28, 1), images)
    assert times.seconds("forward conv1", images) == pytest.approx(microseconds * 1e-6)
    assert times.seconds("backward conv1", images) == pytest.approx(2 * microseconds * 1e-6)
    assert times.seconds("update", images) == pytest.approx(5e-6)
    assert times.source.startswith("2026-01-02")


@pytest.mark.usefixtures("table")
def test_a_model_or_shape_without_times_has_none():
    assert shipped("nin", (224, 224, 3), 1) is None
    assert shipped("lenet5", (32, 32, 1), 1) is None


REPLAY = """
[suite]
name = "replays"
[[case]]
kind = "replay"
model = "{}"
network = "gemini"
ranks = 2
global_batch = {}
"""


def test_a_replay_without_times_takes_those_of_its_batch():
    (case,) = suite.parse(REPLAY.format("nin", 16), "replays.toml").cases
    known = shipped("nin", (224, 224, 3), 8)
    assert case.spec.compute_times.step_seconds(8) == known.step_seconds(8)
    assert case.fields()["compute_times"] == known.source
    with pytest.raises(suite.UsageError, match=r"device: give exactly one of device, flops, times; no times"):
        suite.parse(REPLAY.format("vgg19", 16), "replays.toml")


def test_the_file_has_every_layer_at_each_batch_of_its_model():
    for (model, _), rows in cpu_times._rows().items():
        assert len({tuple(known) for known in rows.values()}) == 1, model
        labels = {label.partition(" ")[0] for label in rows}
        assert {"forward", "backward", "update", "loss"} <= labels
        forward = {label.partition(" ")[2] for label in rows if label.startswith("forward")}
        assert forward == {label.partition(" ")[2] for label in rows if label.startswith("backward")}
