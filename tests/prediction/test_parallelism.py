"""Choice of a mesh by closed forms, against simulation and by hand."""

import json
from functools import partial

import pytest

from hpcdl.aggregation.ring import ring
from hpcdl.cases.parts.compute_times import at_rate
from hpcdl.cases.parts.step_simulation import Training, virtual_step
from hpcdl.cli import main
from hpcdl.fabric.network import NETWORKS
from hpcdl.models.distbelief_speech import distbelief_speech
from hpcdl.models.lenet5 import lenet5
from hpcdl.prediction.mesh_choice import candidates, closed_form_seconds, label, with_mesh
from hpcdl.prediction.split_volumes import splits
from hpcdl.training.parts.bucketing import bucket_bytes
from hpcdl.training.parts.mesh import Mesh
from hpcdl.training.synchronous import synchronous

SPEECH = distbelief_speech(), (11, 40, 1)
LENET = lenet5((28, 28, 1), 10), (28, 28, 1)

SUITE = """
[suite]
name = "s"
[[case]]
kind = "replay"
model = "lenet5"
dataset = "digits"
flops = 1e9
global_batch = 32
ranks = [2, 4]
mesh = {data = 1}
steps = 3
warmup = 1
"""


def times(layers, shape, ranks, batch, network, flops):
    """Return the closed form and the simulated time of each mesh."""
    work, found, link = at_rate(layers, shape, flops), {}, NETWORKS[network].link
    bucket = bucket_bytes(link.alpha, link.beta, ranks)
    for mesh in candidates(ranks):
        base = Training(synchronous, partial(ring), layers, shape, "float32")
        training = with_mesh(base, mesh, work)
        images = batch // (ranks // training.group_ranks(ranks))
        arguments = (training, ranks, images, NETWORKS[network])
        found[label(mesh, ranks)] = (
            closed_form_seconds(*arguments, work),
            virtual_step(*arguments, work, bucket).seconds,
        )
    return found


@pytest.mark.parametrize("network", ["ethernet-1g", "ethernet-10g"])
@pytest.mark.parametrize(("layers", "shape", "batch", "flops"), [(*SPEECH, 32, 1e11), (*LENET, 64, 1e11)])
def test_the_chosen_mesh_is_nearly_the_fastest_in_simulation(network, layers, shape, batch, flops):
    found = times(layers, shape, 2, batch, network, flops)
    chosen = min(found, key=lambda mesh: found[mesh][0])
    assert found[chosen][1] <= 1.1 * min(simulated for _, simulated in found.values())


def test_closed_forms_are_near_the_simulation():
    found = times(*SPEECH, 4, 32, "ethernet-10g", 1e11)
    for mesh, (stated, simulated) in found.items():
        if "pipeline" not in mesh:
            assert stated == pytest.approx(simulated, rel=0.1), mesh


def test_the_cheapest_split_of_a_layer_is_that_of_the_smaller_volume():
    """Weights of the speech network cost more than its activations, up to a batch as long as a layer is wide."""
    layers, shape = SPEECH
    link = NETWORKS["ethernet-10g"].link
    for batch, expected in ((32, "outputs"), (1 << 16, "data")):
        one = {layer.name: layer for layer in splits(layers, shape, batch, 4, link)}["fc3"]
        assert one.split_bytes == {
            "data": 4 * 2 * 3 * 2560 * 2561,
            "outputs": 4 * 2 * 3 * batch * 2560,
            "inputs": 4 * 2 * 3 * batch * 2560,
        }
        assert one.cheapest == expected


def test_equal_meshes_have_one_label():
    assert label(Mesh(data=2, split="hybrid"), 8) == label(Mesh(model=4, split="hybrid"), 8)
    assert label(Mesh(model=1), 4) == label(None, 4) == "data"
    assert len({label(mesh, 8) for mesh in candidates(8)}) == len(candidates(8))


def test_the_command_compares_meshes_and_layers(tmp_path, capsys):
    file = tmp_path / "s.toml"
    file.write_text(SUITE)
    assert main(["predict", str(file), "--network", "ethernet-10g", "--parallelism", "--json"]) == 0
    two, four = json.loads(capsys.readouterr().out)["parallelism"]
    assert (two["ranks"], four["ranks"]) == (2, 4)
    assert [layer["name"] for layer in two["layers"]] == ["conv1", "conv2", "fc1", "fc2"]
    by_time = {mesh["mesh"]: mesh["closed_form_seconds"] for mesh in four["meshes"]}
    assert by_time[four["chosen"]] == min(by_time.values())
    assert {"data", "hybrid outputs 2x2", "space outputs 1x4", "pipeline 1x2"} & set(by_time)
    assert main(["predict", str(file), "--network", "ethernet-10g", "--parallelism"]) == 0
    assert "choose" in capsys.readouterr().out


def test_a_suite_without_trainings_has_no_parallelism(tmp_path, capsys):
    file = tmp_path / "s.toml"
    case = 'kind = "collective"\naggregation = "ring"\nranks = 2\nmessage_bytes = 4\n'
    file.write_text(f'[suite]\nname = "s"\n[[case]]\n{case}')
    assert main(["predict", str(file), "--network", "ethernet-10g", "--parallelism"]) == 2
    error = capsys.readouterr().err
    assert "no training whose parallelism can be predicted" in error
    assert error.count("\n") == 1
