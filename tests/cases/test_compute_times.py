"""How long work takes: arithmetic over a rate, what a run says, or times of layers that come with hpcdl."""

import pytest
from contract.cases import case_of

from hpcdl import registry, suite
from hpcdl.cases.keys import compute_times
from hpcdl.cases.keys.compute_times import CORE, DEVICES, FILES, ComputeTimes, at_rate, recorded, shipped
from hpcdl.nn.volumes import volumes
from hpcdl.trace.recorder import CaseRecord, Recorder, Step
from hpcdl.trace.schema import merge, read, write_part

SHAPE = (8, 8, 1)


def lenet():
    return registry.find("models", "lenet5")(SHAPE, 10)


def test_a_networks_arithmetic_over_a_rate():
    """All layers together: forward and backward of the whole, a backward being two forwards."""
    times = at_rate(lenet(), SHAPE, 1e9)
    assert times.step_seconds(16) == pytest.approx(volumes(lenet(), SHAPE, 16).forward_backward_flop / 1e9)
    for layer in lenet():
        forward, backward = (times.seconds(f"{way} {layer.name}", 5) for way in ("forward", "backward"))
        assert backward == pytest.approx(2 * forward)
    assert times.seconds("input", 5) == times.seconds("update", 5) == 0


def test_the_papers_trainings_on_one_k20_take_the_papers_days():
    """GoogLeNet with batches of 32 and NiN with batches of 256, on 1.28 million images an epoch."""
    for model, batch, epochs, days in (("googlenet", 32, 64, 21), ("nin", 256, 47, 5.8)):
        layers = registry.find("models", model)()
        image = at_rate(layers, (224, 224, 3), DEVICES["k20"].rate(model, batch)).step_seconds(1)
        assert epochs * 1.28e6 * image / 86400 == pytest.approx(days, rel=0.01)


def test_time_on_a_k20_is_affine_in_the_batch():
    """Hockney's n 1/2: as many images cost as much again as a large batch's, in any case; other devices have none."""
    specs = {images: replay("nin", images, device="k20", ranks=1).spec for images in (7, 13, 31)}
    step = {images: spec.compute_times.step_seconds(images) for images, spec in specs.items()}
    slope = (step[31] - step[13]) / 18
    assert step[7] == pytest.approx(step[13] - 6 * slope)
    assert step[7] - 7 * slope == pytest.approx(DEVICES["k20"].half_batch * slope)
    assert DEVICES["v100"].rate("nin", 1) == DEVICES["v100"].rate("nin", 1024) == DEVICES["v100"].flops


def part(file, images=4, slower=1, **fields):
    """Write a case whose steps take ``images``, and ``slower`` times as long."""
    recorder = Recorder()
    clock = 0
    for step in range(3):
        lengths = {"input": 10, "forward a": 40 + step, "add": 999, "backward a": 80, "update": 7}
        for label, length in lengths.items():
            recorder.events.append((0, label, clock, clock + slower * length * 1000, -1, 0))
            clock += slower * length * 1000
        recorder.steps.append(Step(step, 0, 0, clock, images=images))
    said = {"kind": "train", "model": "lenet5", "image_shape": "8x8x1", "ranks": 1}
    write_part(file, CaseRecord({**said, **fields}, [recorder.pack()]))


def written(folder, *cases):
    """Return a run of cases with these arguments of :func:`part`, by default of one."""
    files = [folder / f"{number}.h5" for number in range(len(cases or [{}]))]
    for file, keys in zip(files, cases or [{}], strict=True):
        part(file, **keys)
    merge(files, folder / "run.h5", {}, "")
    return read(folder)


def test_medians_of_the_nearest_recorded_batch_count_in_proportion(tmp_path):
    """Per image, but for updates; reductions are the network's."""
    run = written(tmp_path, {"images": 4, "case": "b4"}, {"images": 16, "slower": 3, "case": "b16"})
    times = recorded(run, "lenet5", SHAPE, 8)
    assert times.seconds("forward a", 8) == pytest.approx(82e-6)
    assert times.seconds("backward a", 2) == pytest.approx(40e-6)
    assert times.seconds("update", 2) == times.seconds("update", 8) == pytest.approx(7e-6)
    assert times.seconds("input", 4) == pytest.approx(10e-6)
    with pytest.raises(ValueError, match="no time is known for work labelled 'add'"):
        times.seconds("add", 4)
    for images in (16, 17):
        times = recorded(run, "lenet5", SHAPE, images)
        assert times.seconds("forward a", images) == pytest.approx(images / 16 * 123e-6)
        assert times.source == "b16"


def test_updates_of_layers_follow_from_those_of_the_network_and_the_other_way_round():
    whole = ComputeTimes({}, {"update": 2e-3}).of_network(lenet(), SHAPE)
    layers = {f"update {layer.name}": whole.seconds(f"update {layer.name}", 1) for layer in lenet()}
    assert sum(layers.values()) == pytest.approx(2e-3)
    assert whole.step_seconds(1) == pytest.approx(2e-3)
    together = ComputeTimes({}, layers).of_network(lenet(), SHAPE)
    assert together.seconds("update", 1) == pytest.approx(2e-3)
    with pytest.raises(ValueError, match="labelled 'update'"):
        ComputeTimes({"input": 1.0}).of_network(lenet(), SHAPE).seconds("update", 1)


@pytest.mark.parametrize(
    ("fields", "shape", "missing"),
    [
        *(
            (fields, SHAPE, "no measured training of 'lenet5'")
            for fields in (
                {"model": "vgg11"},
                {"network": "gemini"},
                {"kind": "collective"},
                {"backend": "cupy(graphs=True)"},  # its events are launches
                {"parallelism": "hybrid(data=1)"},
                {"parallelism": "pipeline(pipeline=2)"},
            )
        ),
        ({}, (28, 28, 1), "training of 'lenet5' on images of 28x"),
        ({"image_shape": None}, SHAPE, "training of 'lenet5' on images of 8x"),
    ],
)
def test_a_run_that_measured_no_such_training_is_refused(tmp_path, fields, shape, missing):
    with pytest.raises(ValueError, match=missing):
        recorded(written(tmp_path, fields), "lenet5", shape)


def test_a_replay_takes_times_of_its_own_images(tmp_path):
    written(tmp_path)

    def case(**keys):
        return case_of("replay", flops=None, times=str(tmp_path), **keys).fields()["modelled_compute_seconds"]

    assert case(dataset="digits", batch_per_rank=4) == pytest.approx(138e-6)
    assert case(dataset="digits", batch_per_rank=8) == pytest.approx(269e-6)
    with pytest.raises(suite.UsageError, match=r"^s.toml: \[\[case\]\] 1: times: .* has no measured training"):
        case(batch_per_rank=4)


TEXT = """# 2026-01-02, one core of a Test, 0 of 2 cases disturbed
model,shape,label,1,2,4,64
lenet5,28x28x1,input,0,0,0,
lenet5,28x28x1,loss,1,1,1,
lenet5,28x28x1,forward conv1,10,12,20,
lenet5,28x28x1,backward conv1,20,24,40,
lenet5,28x28x1,update,5,5,5,
"""


def test_a_call_is_interpolated_and_then_proportional(tmp_path, monkeypatch):
    """A model or a shape without times has none."""
    (tmp_path / "cpu_times.csv").write_text(TEXT)
    monkeypatch.setitem(compute_times.FILES, CORE, tmp_path / "cpu_times.csv")
    for images, microseconds in ((1, 10), (2, 12), (3, 16), (4, 20), (8, 40), (1024, 5120)):
        times = shipped(CORE, "lenet5", (28, 28, 1), images)
        assert times.seconds("forward conv1", images) == pytest.approx(microseconds * 1e-6)
        assert times.seconds("backward conv1", images) == pytest.approx(2 * microseconds * 1e-6)
        assert times.seconds("update", images) == pytest.approx(5e-6)
        assert times.source.startswith("2026-01-02")
    assert shipped(CORE, "nin", (224, 224, 3), 1) is shipped(CORE, "lenet5", (32, 32, 1), 1) is None


def replay(model, batch, **keys):
    keys |= {"network": "gemini", "flops": None, "batch_per_rank": None, "global_batch": batch}
    return case_of("replay", model=model, **keys)


@pytest.mark.parametrize(("model", "device"), [("nin", None), ("resnet50", "h200")])
def test_a_replay_without_times_takes_those_of_its_batch_on_a_core_or_a_measured_device(model, device):
    case = replay(model, 16, device=device)
    known = shipped(device or CORE, model, (224, 224, 3), 8)
    assert case.spec.compute_times.step_seconds(8) == known.step_seconds(8)
    assert case.fields()["compute_times"] == known.source
    assert set(FILES) - {CORE} <= set(DEVICES), "others are at a rate"


@pytest.mark.parametrize("device", FILES)
def test_the_file_has_every_layer_at_each_batch_of_its_model(device):
    for (model, _), rows in compute_times._rows(FILES[device]).items():
        assert len({tuple(known) for known in rows.values()}) == 1, model
        labels = {label.partition(" ")[0] for label in rows}
        assert {"forward", "backward", "update", "loss"} <= labels
        forward = {label.partition(" ")[2] for label in rows if label.startswith("forward")}
        assert forward == {label.partition(" ")[2] for label in rows if label.startswith("backward")}
