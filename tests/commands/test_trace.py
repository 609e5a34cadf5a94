"""hpcdl trace: files for other tools, and what is refused."""

import re

import pytest
from contract.goal import simulated_goal
from suite.conftest import text_of

from hpcdl.cli import main
from hpcdl.commands.trace import FORMATS
from hpcdl.fabric.network import NETWORKS
from hpcdl.trace.export import LAST_STREAM, select, write_goal
from hpcdl.trace.schema import read

from .conftest import TRAIN

SUITE = f"""[suite]
name = "s"
{TRAIN.replace("48", "12")}
training = {{name = "synchronous", bucket_bytes = 0}}
aggregation = ["ring", "tree"]
ranks = 3
steps = 4
network = "ethernet-1g"
flops = 1e9
"""

OF_SIZES = """
[suite]
name = "s"

[[case]]
kind = "replay"
model = "lenet5"
training = {name = "synchronous", bucket_bytes = 100000}
ranks = 5
batch_per_rank = 4
network = "ethernet-1g"
flops = 1e9
trace = ["steps", "events"]

[[case]]
kind = "collective"
aggregation = "ring"
ranks = 5
message_bytes = 1004
network = "ethernet-1g"
trace = ["steps", "events"]
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of two simulated cases."""
    folder = tmp_path_factory.mktemp("traced")
    (folder / "s.toml").write_text(SUITE)
    assert main(["run", str(folder / "s.toml"), "-o", str(folder / "run")]) == 0
    return folder / "run"


@pytest.mark.parametrize(("form", "launches"), [("perfetto", 2), ("goal", 1)])
def test_a_file_is_written_and_its_contents_are_counted(run, tmp_path, capsys, form, launches):
    for number in range(1, launches + 1):
        (tmp_path / f"launch-{number}").symlink_to(run)
    file = tmp_path / "x"
    options = ["--format", form, "--case", "*ring*", "--steps", "1-2"]
    assert main(["trace", str(tmp_path), "-o", str(file), *options]) == 0
    out = capsys.readouterr().out
    assert "24 messages" in out  # 2 steps, 3 ranks, 2(p - 1) messages
    assert (", launch 1 of 2: " in out) == (launches == 2)
    assert file.stat().st_size


def test_steps_and_collectives_of_sizes_are_traced_on_all_ranks_and_take_as_long(tmp_path, capsys):
    """Events of the last cycle of steps alone, whatever symmetry the network has."""
    (tmp_path / "s.toml").write_text(OF_SIZES)
    assert main(["run", str(tmp_path / "s.toml"), "-o", str(tmp_path / "run")]) == 0
    run = read(tmp_path / "run")
    for index, case in enumerate(run.recorded):
        length = case.steps["end"] - case.steps["begin"]
        assert {*length} == {*(run.recorded[index ^ 1].steps["end"] - run.recorded[index ^ 1].steps["begin"])}
        if '"events"' not in str(case.fields["settings"]):
            continue
        assert {*case.steps["rank"]} == {*run.events_of(index)["rank"]} == {*range(5)}
        sent = (run.events_of(index)["label"] == "send").sum()
        assert sent % (5 * 8) == 0  # 2(p - 1) messages of a rank in each sum
        for form in FORMATS:
            capsys.readouterr()
            options = ["--case", str(case.fields["case"]), "--format", form, "--steps", "0"]
            assert main(["trace", str(tmp_path / "run"), "-o", str(tmp_path / form), *options]) == 0
            assert f"{sent} messages" in capsys.readouterr().out


KINDS = {
    "googlenet": (
        "layerwise ring, layerwise tree, synchronous direct, synchronous halving_doubling, "
        "zero(2) ring, zero(3) ring, pipeline(gpipe) ring, diloco ring"
    ),
    "alexnet": "layerwise direct, layerwise server, zero(1) ring, pipeline ring",
}
"""Kinds of steps of 4 ranks, by model. AlexNet's largest layers have hundreds of tasks at once."""
TRAININGS = ("asynchronous", "softsync", "elastic_averaging", "ad_psgd", "update_broadcast", "d_psgd")
NAMES = {
    "server": "parameter_server",
    "zero(1)": {"name": "zero", "stage": 1},
    "zero(2)": {"name": "zero", "stage": 2},
    "zero(3)": {"name": "zero", "stage": 3},
    "pipeline(gpipe)": {"name": "pipeline", "schedule": "gpipe"},
}


def replayed(model, kind):
    training, aggregation = (NAMES.get(name, name) for name in kind.split())
    keys = {"ranks": 4, "batch_per_rank": 16, "flops": 1e12, "trace": "events"}
    return {"kind": "replay", "model": model, "training": training, "aggregation": aggregation, **keys}


def trained(training):
    keys = {"ranks": 4, "batch_per_rank": 32, "epochs": 1, "learning_rate": 0.01, "flops": 1e10}
    return {"kind": "train", "model": "lenet5", "dataset": "digits", "training": training, **keys}


CASES = {f"{model} {kind}": replayed(model, kind) for model, kinds in KINDS.items() for kind in kinds.split(", ")}
CASES |= {training: trained(training) for training in TRAININGS}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_schedule_of_steps_ends_with_no_message_left_over(tmp_path, case):
    """Each rank's events are those of its last step, so that messages are cut at the borders of steps.

    With ``direct`` many messages wait for one port, and each simulator chooses another one to go first.
    """
    (tmp_path / "s.toml").write_text(text_of({**case, "network": "ethernet-10g"}))
    assert main(["run", str(tmp_path / "s.toml"), "-o", str(tmp_path / "run")]) == 0
    run = read(tmp_path / "run")
    is_replay = case["kind"] == "replay"
    # a training tests its parameters after its steps
    steps = None if is_replay else range(run.rows_of("steps", 0).groupby("rank")["step"].max().min() + 1)
    selection = select(run, 0, steps=steps)
    assert write_goal(tmp_path / "x.goal", selection) == len(selection.messages) / 2
    text, link = (tmp_path / "x.goal").read_text(), NETWORKS["ethernet-10g"].link
    time, end = simulated_goal(text, link.alpha, link.beta), selection.events["end"].max()
    assert case.get("aggregation") == "direct" or time == pytest.approx(end, rel=0.08 if is_replay else 0.05)
    assert max(map(int, re.findall(r" cpu (\d+)", text)), default=0) <= LAST_STREAM


def test_a_simulated_collective_with_too_many_events_is_refused_before_it_runs(tmp_path, refused):
    text = OF_SIZES[OF_SIZES.rindex("[[case]]") :].replace("= 5", "= 1024")
    (tmp_path / "s.toml").write_text(f'[suite]\nname = "s"\n{text}')
    said = refused("run", tmp_path / "s.toml", "-o", tmp_path / "run")
    assert "trace: 1024 ranks may send 2.1e+06 messages" in said


WRONG = [
    ("", "--case: choose one of 2 cases, such as 'train-lenet5-digits-synchronous(bucket_bytes=0)-ring-p3"),
    ("--case nothing", "--case 'nothing' matches none of the cases"),
    ("--case *ring* --ranks 2-3", "has no rank 3"),
    ("--case *ring* --steps 70000", "has no step 70000"),
    ("--case *ring* --ranks 3-1", "'3-1' is no range such as 0-7"),
    ("--case *ring* --format gaol", "gaol"),
]


def test_what_a_run_does_not_have_is_refused(run, refused):
    for options, message in WRONG:
        assert message in refused("trace", run, "-o", "x", *options.split())
