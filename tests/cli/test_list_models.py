"""What ``hpcdl list models`` says of them."""

import json

import pytest

from hpcdl.cli import main

WEIGHED = {
    "batch",
    "parameters",
    "multiply_adds_per_image",
    "weight_bytes",
    "data_bytes",
    "forward_backward_flop",
    "activation_bytes",
}


@pytest.fixture
def models(capsys):
    def listed(*arguments):
        assert main(["list", "models", "--json", *arguments]) == 0
        return json.loads(capsys.readouterr().out)["models"]

    return listed


def test_each_model_is_weighed_once_on_images_of_its_own_size(models):
    found = {entry["name"]: entry for entry in models()}
    assert len(found) == len(models())
    assert all(
        entry.keys() == {"name", "summary", "settings", "defaults", "shape", "classes", *WEIGHED}
        for entry in found.values()
    )
    assert found["alexnet"]["shape"] == [227, 227, 3]
    assert found["alexnet"]["settings"] == {"groups": "int", "dropout": "float"}
    assert found["googlenet"]["settings"]["auxiliary"] == "bool"
    assert found["resnet50"]["parameters"] == 25_557_032
    assert found["distbelief_speech"]["classes"] == 8192
    assert {entry["batch"] for entry in found.values()} == {256}


def test_each_batch_is_a_record_and_what_depends_on_it_is_in_proportion(models):
    found = [entry for entry in models("--batch", "1,1024") if entry["name"] == "googlenet"]
    one, many = found
    assert (one["batch"], many["batch"]) == (1, 1024)
    for key in ("data_bytes", "forward_backward_flop", "activation_bytes"):
        assert many[key] == 1024 * one[key]
    for key in ("parameters", "weight_bytes", "multiply_adds_per_image"):
        assert many[key] == one[key]
    assert round(many["data_bytes"] / 1e6) == 19_102


def test_as_a_table(capsys):
    main(["list", "models"])
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "227x227x3   60,965,224 parameters   0.7244 GMAC  Five convolutions" in lines["alexnet"]
    main(["list", "models", "--batch", "1024"])
    lines = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines()}
    expected = "224x224x3 batch 1024 |W| 30.4 MB |D| 5,792.7 MB 6.760 TFLOP activations"
    assert lines["nin"][1:-2] == expected.split()


@pytest.mark.parametrize("batch", ["0", "64,-1", "many", "64,", ""])
def test_batches_that_are_none(batch, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["list", "models", f"--batch={batch}"])
    assert stopped.value.code == 2
    assert capsys.readouterr().err.startswith("hpcdl list: --batch: ")


@pytest.mark.parametrize("what", [[], ["optim"]])
def test_a_batch_is_for_models(what, capsys):
    assert main(["list", *what, "--batch", "64"]) == 2
    assert capsys.readouterr().err == "hpcdl: --batch: goes with models only\n"
