"""``hpcdl predict``: other networks, more ranks, and error messages."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from contract import measured
from contract.measured import measure

from hpcdl.analysis.run.pooling import read_pooled
from hpcdl.analysis.run.record import group_by_key
from hpcdl.cli import main
from hpcdl.fabric.network import NETWORKS
from hpcdl.prediction.predict import Prediction, predict
from hpcdl.report.formats.verdicts import words
from hpcdl.report.run import predicted_answers
from hpcdl.report.run.findings import findings
from hpcdl.report.sections import clusters

REPORTS = Path(__file__).parents[2] / "reports"
SCHEMES = ("ring", "tree(arity=4)", "butterfly")
SUITE = measured.SUITE.format('["ring", {name = "tree", arity = 4}, "butterfly"]', [4096, 1048576])
NETWORK = NETWORKS["ethernet-1g"]


@pytest.fixture
def suite(tmp_path):
    file = tmp_path / "sums.toml"
    file.write_text(SUITE)
    return file


@pytest.fixture
def run(hand):
    """Return a run on four hosts whose times are exactly those of ethernet-1g."""
    measure(hand, NETWORK, SUITE, {**measured.HOSTS, "mpi": {"library": "MPICH", "version": "5"}})
    return hand.folder


def message(capsys, *arguments):
    assert main(["predict", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_a_suite_on_a_preset(capsys, suite):
    whole = json.loads(message(capsys, suite, "--network", "gemini", "--ranks", "2,8", "--json"))
    found = {(c["aggregation"], c["message_bytes"], c["ranks"]): c["predicted_seconds"] for c in whole["cases"]}
    assert set(found) == {(s, n, p) for s in SCHEMES for n in (4096, 1048576) for p in (2, 8)}
    link, gamma = NETWORKS["gemini"].link, NETWORKS["gemini"].gamma
    stated = 14 * link.alpha + 1048576 * 7 / 8 * (2 * link.beta + gamma)
    assert found["ring", 1048576, 8] == pytest.approx(stated)
    assert whole["network"]["beta_seconds"] == link.beta


def test_a_run_predicts_itself_and_more_ranks_and_marks_those_far_beyond(capsys, run):
    page = message(capsys, run, "--network", run, "--ranks", "4,16,17")
    lines = page.splitlines()
    assert [line for line in lines if line.endswith("  E")] == [line for line in lines if "  17  " in line] != []
    assert "- Predictions of 6 undisturbed times are 0.0 % too" in page
    assert "simulated | up to 4.25 times the measured ranks" in " ".join(page.split())
    whole = json.loads(message(capsys, run, "--network", run, "--ranks", "2,4,32", "--json"))
    assert whole["network"]["alpha_seconds"] == pytest.approx(NETWORKS["ethernet-1g"].link.alpha, rel=0.01)
    assert whole["network"]["fit"]["ranks_left_out"]["worst"] < 0.01
    for case in whole["cases"]:
        if case["ranks"] == 32:
            assert case["time_p50_seconds"] is None
            assert case["times_the_measured_ranks"] == 8
        else:
            assert case["predicted_seconds"] == pytest.approx(case["time_p50_seconds"], rel=0.01)


def test_a_saved_network_gives_the_same_predictions(capsys, run, suite, tmp_path):
    file = tmp_path / "ours.toml"
    first = message(capsys, suite, "--network", run, "--ranks", "64", "--save", file, "--json")
    again = message(capsys, suite, "--network", file, "--ranks", "64", "--json")
    names = ("predicted_seconds", "times_the_measured_ranks")
    times = [[[case[name] for name in names] for case in json.loads(text)["cases"]] for text in (first, again)]
    assert times[0] == times[1]
    assert 'library = "MPICH 5"' in file.read_text()
    message(capsys, suite, "--network", file, "--save", tmp_path / "copy.toml")
    assert (tmp_path / "copy.toml").read_text() == file.read_text()
    file.write_text(f'{file.read_text()}\n[topology]\nname = "fat_tree"\nhosts = [8, 8]\noversubscription = [2]\n')
    message(capsys, suite, "--network", file, "--save", tmp_path / "copy.toml")
    assert "oversubscription = [2]" in (tmp_path / "copy.toml").read_text()


def test_a_saved_network_keeps_its_warnings(capsys, refused, hand, suite, tmp_path, monkeypatch):
    """A ring alone leaves beta and gamma undetermined: a tree has the same ratio of bytes sent and reduced, a butterfly not."""
    monkeypatch.setenv("COLUMNS", "200")  # wide enough that no verdict is wrapped
    measure(hand, NETWORK, measured.SUITE.format('"ring"', [4096, 1048576]))
    file = tmp_path / "ours.toml"
    first = message(capsys, suite, "--network", hand.folder, "--ranks", "64", "--save", file)
    again = message(capsys, suite, "--network", file, "--ranks", "64")
    for page in (first, again):
        assert "do not determine beta, gamma" in " ".join(page.split())
        marked = {line.split()[2] for line in page.splitlines() if re.search(" E?U$", line)}
        assert marked == {"butterfly"}
    whole = file.read_text()
    for broken in ("information = 1", "information = [[inf]]", "prices = [1.0]"):
        file.write_text(re.sub(f"(?m)^{broken.split()[0]} .*", broken, whole))
        said = refused("predict", suite, "--network", file)
        assert "certainty: not in the form that --save writes" in said


REPLAY = """
[suite]
name = "s"
[[case]]
kind = "replay"
model = "lenet5"
dataset = "digits"
flops = 1e9
global_batch = 32
ranks = 4
mesh = {data = 1}
steps = 3
"""


def test_each_sentence_of_a_prediction_appears_with_what_its_interval_carries(tmp_path, suite):
    replay = tmp_path / "replay.toml"
    replay.write_text(REPLAY)
    meshes = predict(replay, "ethernet-1g", meshes=True)
    replay.write_text(REPLAY.replace("mesh = {data = 1}\n", ""))
    sums, steps = (predict(file, "ethernet-1g", [1, 2, 4] if file == replay else [4]) for file in (suite, replay))

    def at(gain, bound=1.0, ranks=(1, 2, 4)):
        """Return the prediction of a speed-up on 4 ranks, known by this factor, and of 2 on 2 ranks."""
        rows = []
        for row in (row for row in steps.steps if row.ranks in ranks):
            speed, seconds = {1: 1.0, 2: 2.0, 4: gain}[row.ranks], row.predicted_seconds
            ends = (seconds / bound, seconds * bound) if bound > 1 and row.ranks > 1 else ()
            known = dict(zip(("predicted_low_seconds", "predicted_high_seconds"), ends, strict=False))
            rows.append(row.but(predicted_images_per_second=speed, **known))
        return Prediction(steps.estimate, steps=rows)

    told = {}
    for prediction, says in (
        (at(3.9), "Predicted for ethernet-1g: LeNet-5 stays near-linear up to 4 ranks, 3.90 times as fast as on 1 rank."),
        (at(3.2), "Predicted for ethernet-1g: LeNet-5 is not near-linear on 4 ranks, 3.20 times as fast as on 1 rank. LeNet-5 is near-linear up to 2 ranks."),
        (at(3.7, 1.05), "Not decided for ethernet-1g: LeNet-5 on 4 ranks is 3.70 times (3.52 to 3.89) as fast as on 1 rank; near-linear means 3.60"),
        (at(3.7, ranks=(4,)), "A step of LeNet-5 takes "),
        (sums, "On 4 ranks of ethernet-1g an allreduce of 1 MiB takes "),
        (meshes, "For LeNet-5 in batches of 32 on 4 ranks of ethernet-1g choose the mesh "),
    ):  # fmt: skip
        verdict = predicted_answers.verdicts(prediction)[0]
        told[verdict.word] = verdict.sentence
        assert verdict.sentence.startswith(says)
        assert len(verdict.headline.split()) <= 30
    assert told.keys() == words("prediction")
    assert predicted_answers.SHEETS in predicted_answers.badges(sums)


def test_data_sheets_are_as_wrong_as_the_clusters_of_the_reports_tell():
    (found,) = findings([read_pooled([REPORTS / "data/clusters.json.xz"])])
    ratios = group_by_key((each.record.network, each.value) for each in clusters.ratios(found))
    too_fast = sorted(1 / float(np.median(values)) for values in ratios.values())
    assert len(too_fast) == 2
    assert f"{too_fast[0]:.1f} to {too_fast[1]:.1f} times too fast on two clusters" in predicted_answers.SHEETS


def test_efficiency_and_images_a_second_stand_beside_one_rank_and_buckets_of_no_setting_are_named(
    tmp_path, capsys, monkeypatch
):
    """A table of layers has the name of its file; half of the images come from the base alone."""
    monkeypatch.setenv("COLUMNS", "120")
    rows = "".join(f"layer{number},1000000,1000,1000000000,2000000000,\n" for number in range(3))
    table = tmp_path / "our-network.csv"
    table.write_text(f"name,parameters,activations,forward_flop,backward_flop,group\n{rows}")
    replay = tmp_path / "replay.toml"
    ours = REPLAY.replace('"lenet5"\ndataset = "digits"', f'{{name = "layers", path = "{table}"}}')
    replay.write_text(ours.replace("mesh = {data = 1}\n", ""))
    page = message(capsys, replay, "--network", "ethernet-1g", "--ranks", "4")
    assert "near-linear" in page and "our-network" in " ".join(page.split())
    assert "layers(" not in page.partition("VERDICT")[2]
    header, one, four = (line.split() for line in page.splitlines() if re.match(r" *(ranks|1|4) ", line))
    assert "efficiency" in header and "backward" in page
    cases = json.loads(message(capsys, replay, "--network", "ethernet-1g", "--ranks", "4", "--json"))["cases"]
    assert [case["ranks"] for case in cases] == [1, 4]
    speeds = [case["predicted_images_per_second"] for case in cases]
    assert f"{speeds[1] / speeds[0] / 4:.3f}" in four
    assert "1.00" in one and cases[1]["bucket_bytes"] > 0


def test_a_network_alone_is_refused_with_the_times_that_the_package_has(refused):
    said = refused("predict", "resnet50", "--network", "gemini")
    assert 'kind = "replay", model = "resnet50", device = "h200-bf16"' in said
    assert "the package has times of it on core, h200, h200-bf16" in said
    assert "hpcdl help models records them" in refused("predict", "vgg11", "--network", "gemini")


def test_oversubscribed_ranks_are_left_out_of_the_fit(capsys, suite, hand):
    """Four ranks on two cores take ten times as long as the network predicts."""
    slow = lambda fields: 10 if fields["ranks"] == 4 else 1
    environment = {"cpu": {"physical_cores": 2}, "ranks": [{"hostname": "n"}] * 4}
    measure(hand, NETWORK, SUITE, environment, slow, nodes=1, threads_per_rank=1)
    page = " ".join(message(capsys, suite, "--network", hand.folder, "--ranks", "2").split())
    assert "Left out of the fit: 6 of 12 cases, on 4 oversubscribed ranks." in page
    whole = json.loads(message(capsys, suite, "--network", hand.folder, "--ranks", "2", "--json"))
    assert whole["network"]["fit"]["fitted"]["of"] == 6
    assert whole["network"]["fit"]["fitted"]["worst"] < 0.01


def test_a_file_that_is_no_network_is_refused(refused, suite, tmp_path):
    broken = tmp_path / "broken.toml"
    for text, what in (("[network", "not TOML"), ("", "no table [network]")):
        broken.write_text(text)
        line = refused("predict", suite, "--network", broken)
        assert what in line and "broken.toml" in line
