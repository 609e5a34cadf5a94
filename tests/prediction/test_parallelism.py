"""Choice of a mesh by closed forms, against simulation and by hand."""

import json

import pytest
from suite.conftest import CASES, text_of

from hpcdl import suite
from hpcdl.analysis.run.record import Record
from hpcdl.cases.keys.compute_times import at_rate
from hpcdl.cli import main
from hpcdl.fabric.network import NETWORKS
from hpcdl.models.distbelief import distbelief_speech
from hpcdl.prediction.network_file import NetworkEstimate
from hpcdl.prediction.parallelism import parallelism, splits

REPLAY = {"kind": "replay", "model": "lenet5", "dataset": "digits", "flops": 1e9, "steps": 3, "warmup": 1}


def of_cases(mesh, seconds, *, batch=32, training="synchronous"):
    """Return the parallelism of replays with these meshes, measured in so many seconds, and what is left out."""
    keys = {"ranks": 4, "mesh": mesh, "global_batch": batch, "training": training}
    cases = suite.parse(text_of(REPLAY | keys), "s.toml").cases
    fields = zip((case.fields() for case in cases), seconds, strict=True)
    measured = [Record.of({**own, "step_seconds": took}) for own, took in fields]
    work = lambda _like, spec: at_rate(spec.layers, spec.shape, 1e9)
    (found,), left_out = parallelism(measured, work, NetworkEstimate(NETWORKS["ethernet-1g"]), ())
    return found, left_out


def test_the_cheapest_split_of_a_layer_is_that_of_the_smaller_volume():
    """Weights of the speech network cost more than its activations, up to a batch as long as a layer is wide."""
    link = NETWORKS["ethernet-10g"].link
    for batch, expected in ((32, "outputs"), (1 << 16, "data")):
        layers = splits(distbelief_speech(), (11, 40, 1), batch, 4, link)
        (one,) = (layer for layer in layers if layer.name == "fc3")
        activations = 4 * 2 * 3 * batch * 2560
        weights = 4 * 2 * 3 * 2560 * 2561
        assert one.split_bytes == {"data": weights, "outputs": activations, "inputs": activations}
        assert one.cheapest == expected


def test_a_pipeline_has_the_best_number_of_microbatches():
    """By simulation; the default of four is measured beside it."""
    found, _ = of_cases({"data": 1, "pipeline": 4}, [0.3], batch=64, training="pipeline")
    by_name = {one.parallelism: one.predicted_seconds for one in found.meshes}
    pipelines = {name: seconds for name, seconds in by_name.items() if "1x4" in name and "pipe" in name}
    assert len(pipelines) == 2
    assert min(pipelines.values()) < pipelines["pipeline 1x4 in 4 parts"]


@pytest.mark.slow
def test_the_command_compares_meshes_and_layers(tmp_path, capsys):
    file = tmp_path / "s.toml"
    file.write_text(text_of({**REPLAY, "global_batch": 32, "ranks": [2, 4], "mesh": {"data": 1}}))
    assert main(["predict", str(file), "--network", "ethernet-10g", "--parallelism", "--json"]) == 0
    two, four = json.loads(capsys.readouterr().out)["parallelism"]
    assert (two["ranks"], four["ranks"]) == (2, 4)
    assert [layer["name"] for layer in two["layers"]] == ["conv1", "conv2", "fc1", "fc2"]
    by_time = {mesh["mesh"]: mesh["predicted_seconds"] for mesh in four["meshes"]}
    assert by_time[four["chosen"]] == min(by_time.values())
    wanted = {"data", "model inputs 1x4", "space outputs 1x4", "hybrid outputs 2x2", "hybrid outputs turns 1x4"}
    assert wanted | {"hybrid outputs slices 1x4"} <= set(by_time)
    assert main(["predict", str(file), "--network", "ethernet-10g", "--parallelism"]) == 0
    assert "choose" in capsys.readouterr().out


def test_a_suite_without_trainings_has_no_parallelism(tmp_path, capsys):
    file = tmp_path / "s.toml"
    file.write_text(text_of(CASES["collective"]))
    assert main(["predict", str(file), "--network", "ethernet-10g", "--parallelism"]) == 2
    error = capsys.readouterr().err
    assert "no training whose parallelism can be predicted" in error
    assert error.count("\n") == 1


def test_measured_meshes_are_beside_the_candidates_that_can_share_the_batch():
    mesh = [{"model": 4}, {"data": 1, "split": "hybrid", "exchange": "turns"}, {"model": 1}]
    found, _ = of_cases(mesh, [0.3, 0.2, 0.1])
    measured = {one.parallelism: one.step_seconds for one in found.meshes if one.step_seconds}
    assert measured == {"model outputs 1x4": 0.3, "hybrid outputs turns 1x4": 0.2, "data": 0.1}
    assert found.best.parallelism == "data"
    names = [one.parallelism for one in found.meshes]
    assert len(names) == len(set(names)), "equal meshes are one"
    found, left_out = of_cases({"data": 1}, [0.1], batch=2)
    assert "data" not in {one.parallelism for one in found.meshes}
    assert "lenet5, mesh data: 2 images are not divisible by 4 copies of the network" in left_out
