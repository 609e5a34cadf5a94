"""The examples of CONTRIBUTING.md work as the text states, in a folder outside the package."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TEXT = Path(__file__).parents[1] / "CONTRIBUTING.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", TEXT.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)

SUITE = """
[suite]
name = "examples"
question = "Do the examples train?"
[[case]]
kind = "train"
model = {model}
dataset = "digits"
backend = "numpy"
training = {training}
aggregation = {aggregation}
optimizer = {optimizer}
learning_rate = 0.001
ranks = 3
global_batch = 60
epochs = 1
network = "ethernet-10g"
flops = 1e9
"""
REPLAY = """
[suite]
name = "replay"
question = "How long are the steps?"
[[case]]
kind = "replay"
model = "lenet5"
training = "my_strategy:in_one_piece"
aggregation = "my_scheme:line"
ranks = 3
batch_per_rank = 20
flops = 1e9
"""
EXAMPLES = (
    *("my_scheme.py", "my_strategy.py", "my_model.py", "my_optimizer.py"),
    *("sections/messages.py", "commands/cases.py"),
)
DROPPED_IN = """
import sys
import hpcdl.commands, hpcdl.report.sections
hpcdl.commands.__path__.append("commands")
hpcdl.report.sections.__path__.append("sections")
from hpcdl.cli import main
sys.exit(main(sys.argv[1:]))
"""
USUAL = {"model": "lenet5", "training": "synchronous", "aggregation": "ring", "optimizer": "sgd"}


@pytest.fixture
def folder(tmp_path):
    for name, block in zip(EXAMPLES, BLOCKS, strict=True):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(block, encoding="utf-8")
    return tmp_path


def hpcdl(folder, *arguments):
    command = [Path(sys.executable).with_name("hpcdl"), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


def dropped_in(folder, *arguments):
    """Run hpcdl as if the section and the command were files of its folders."""
    command = [sys.executable, "-c", DROPPED_IN, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


def test_a_section_that_is_dropped_in_is_on_the_page_and_in_the_verdict(folder, hand):
    hand.train([[10.0] * 10] * 2)
    hand.read()
    done = dropped_in(folder, "report", str(hand.folder))
    assert done.returncode == 0, done.stderr
    text = done.stdout
    assert "A rank sends at most 3.00 messages per step." in text[: text.index("\n## Warnings")]
    assert "\n## Messages\n" in text[text.index("\n## Scaling") : text.index("\n## Job")]
    assert "## Messages" not in hpcdl(folder, "report", str(hand.folder)).stdout


def test_a_command_that_is_dropped_in_is_listed_and_runs(folder, hand):
    hand.train([[10.0] * 10], case="first")
    hand.read()
    assert "names of a run's cases" in dropped_in(folder, "--help").stdout
    assert dropped_in(folder, "cases", str(hand.folder)).stdout == "first\n"
    missing = dropped_in(folder, "cases", "nowhere")
    assert missing.returncode == 2
    assert missing.stderr.startswith("hpcdl: nowhere")
    assert dropped_in(folder, "csaes").stderr == "hpcdl: csaes: unknown command; did you mean 'cases'?\n"


def test_the_scheme_passes_its_contract(folder):
    done = hpcdl(folder, "check", "my_scheme:line")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok ") == len(done.stdout.splitlines()) == 6


def test_the_strategy_can_be_replayed_and_predicted(folder):
    (folder / "suite.toml").write_text(REPLAY, encoding="utf-8")
    done = hpcdl(folder, "predict", "suite.toml", "--network", "ethernet-10g", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads(done.stdout)["cases"]
    assert row["training"] == "my_strategy:in_one_piece"
    assert row["predicted_seconds"] > row["compute_seconds"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("aggregation", "my_scheme:line"),
        ("training", "my_strategy:in_one_piece"),
        ("model", "my_model:two_layers"),
        ("optimizer", "my_optimizer:SignSGD"),
    ],
)
def test_an_example_trains(folder, key, name):
    chosen = {one: f'"{value}"' for one, value in {**USUAL, key: name}.items()}
    (folder / "suite.toml").write_text(SUITE.format(**chosen), encoding="utf-8")
    done = hpcdl(folder, "run", "suite.toml", "-n", "1", "-o", "out")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (folder / "out" / "run.h5").exists()


def test_the_examples_pass_the_gate_of_the_project(tmp_path):
    """As files of the package: ruff with the project's rules, and mypy."""
    places = ("aggregation", "training", "models", "optim", "report/sections", "commands")
    root = Path(__file__).parents[1]
    for name in ("pyproject.toml", "hpcdl"):
        (shutil.copytree if (root / name).is_dir() else shutil.copy)(root / name, tmp_path / name)
    files = []
    for place, name, block in zip(places, EXAMPLES, BLOCKS, strict=True):
        file = tmp_path / "hpcdl" / place / Path(name).name
        file.write_text(block, encoding="utf-8")
        files.append(file)
    for command in (["ruff", "check"], ["ruff", "format", "--check"], ["mypy"]):
        ended = subprocess.run(
            [sys.executable, "-m", *command, *files], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, ended.stdout
