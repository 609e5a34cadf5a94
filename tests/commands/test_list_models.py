"""``hpcdl list models``: shapes, parameters and volumes."""

import json

import pytest

from hpcdl.cli import main

VOLUMES = {
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


def test_each_model_has_one_record_for_its_natural_image_size(models):
    found = {entry["name"]: entry for entry in models()}
    assert len(found) == len(models())
    assert found.pop("layers").keys() == {"name", "summary", "settings", "defaults"}, "its sizes are in a file"
    assert all(
        entry.keys() == {"name", "summary", "settings", "defaults", "shape", "classes", *VOLUMES}
        for entry in found.values()
    )
    assert found["alexnet"]["shape"] == [227, 227, 3]
    assert found["alexnet"]["settings"] == {"groups": "int", "dropout": "float"}
    assert found["googlenet"]["settings"]["auxiliary"] == "bool"
    assert found["resnet50"]["parameters"] == 25_557_032
    assert found["distbelief_speech"]["classes"] == 8192
    assert {entry["batch"] for entry in found.values()} == {256}


def test_the_table_on_a_terminal(capsys):
    main(["list", "models"])
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "227x227x3   60,965,224 parameters   0.7244 GMAC  AlexNet: five convolutions" in lines["alexnet"]
    main(["list", "models", "--batch", "1024"])
    lines = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines()}
    expected = "224x224x3 batch 1024 |W| 30.4 MB |D| 5,792.7 MB 6.760 TFLOP outputs"
    assert lines["nin"][1:-2] == expected.split()
