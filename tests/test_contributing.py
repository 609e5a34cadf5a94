"""The examples of CONTRIBUTING.md work as the text states: as files of the package, and two in a user's folder."""

import importlib
import json
import re
import shutil
import sys
from pathlib import Path
from typing import get_type_hints

import pytest
from conftest import ended

ROOT = Path(__file__).parents[1]
TEXT = ROOT / "CONTRIBUTING.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", TEXT.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
FILES = (
    *("aggregation/line.py", "training/in_one_piece.py", "models/two_layers.py"),
    *("nn/leaky_relu.py", "optim/sign_sgd.py"),
    *("compression/in_turn.py", "data/bars.py", "cases/barrier.py"),
    *("report/sections/messages.py", "report/sections/precision.py", "commands/cases.py"),
)
EXAMPLES = dict(zip(FILES, BLOCKS, strict=True))

SUITE = """
[suite]
name = "examples"
question = "Do the examples train?"
[[case]]
kind = "train"
model = "two_layers"
dataset = "digits"
training = "in_one_piece"
aggregation = "line"
optimizer = "sign_sgd"
learning_rate = 0.001
backend = "numpy"
ranks = 3
global_batch = 60
epochs = 1
network = "ethernet-10g"
flops = 1e9
[[case]]
kind = "train"
model = "lenet5"
dataset = "bars"
aggregation = "allgather"
compression = "in_turn"
learning_rate = 0.02
backend = "numpy"
ranks = 3
global_batch = 60
epochs = 8
network = "ethernet-10g"
flops = 1e9
[[case]]
kind = "barrier"
ranks = 1
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


def named(path, name):
    """Return an object of a module by the path of its file."""
    return getattr(importlib.import_module(path.replace("/", ".")), name)


def test_the_named_members_and_objects_exist():
    text = TEXT.read_text(encoding="utf-8")
    objects = re.findall(r"`(\w+)`\s+(?:in\s+|\()`(hpcdl/[\w/]+)\.py`", text)
    assert {name for name, _ in objects} >= {"Aggregation", "Comm", "Session", "gradient", "Optimizer", "Kind"}
    owners = {name: named(path, name) for name, path in objects}
    tables = {"method": "Comm", "member of `Session`": "Session"}
    for header, owner in tables.items():
        table = text.partition(f"| {header} |")[2].partition("\n\n")[0]
        for member in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE):
            for name in re.findall(r"`(\w+)", member):
                assert name in dir(owners[owner]) or name in owners[owner].__annotations__, name
        for part, name in re.findall(r"`(\w+)\.(\w+)", table):
            member = owners[owner].__dict__.get(part)
            kind = get_type_hints(member.fget)["return"] if isinstance(member, property) else None
            assert hasattr(kind or owners[owner].__annotations__[part], name)


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """Return a folder with a copy of the package that has the examples as files."""
    folder = tmp_path_factory.mktemp("package")
    shutil.copytree(ROOT / "hpcdl", folder / "hpcdl")
    shutil.copy(ROOT / "pyproject.toml", folder)
    if (ROOT / ".mypy_cache").exists():  # of make check; otherwise mypy takes half a minute
        shutil.copytree(ROOT / ".mypy_cache", folder / ".mypy_cache")
    for name, block in EXAMPLES.items():
        assert not (ROOT / "hpcdl" / name).exists(), name
        (folder / "hpcdl" / name).write_text(block, encoding="utf-8")
    return folder


def hpcdl(folder, *arguments, root=None):
    """Run hpcdl in ``folder``, with the package in ``root``, by default that of the folder if it has one."""
    root = root or (folder if (folder / "hpcdl").is_dir() else ROOT)
    return ended([sys.executable, "-m", "hpcdl", *arguments], folder, PYTHONPATH=str(root))


def test_a_section_that_is_dropped_in_is_on_the_page_and_in_the_verdict(package, hand):
    hand.train([[10.0] * 10] * 2)
    hand.read()
    done = hpcdl(package, "report", str(hand.folder))
    assert done.returncode == 0, done.stderr
    text = done.stdout
    assert "A rank sends at most 3.00 messages per step." in text[: text.index("\n## Warnings")]
    assert text.index("\n## Messages\n") < text.index("\n## Warnings") < text.index("\n## Scaling"), "it answers"


def test_a_view_that_is_dropped_in_judges_its_sides(package, hand):
    for launch, ms in enumerate((20.0, 20.2, 20.1)):
        hand.train([[ms] * 5] * 2, dtype="float64", launch=launch)
        hand.train([[ms / 2] * 5] * 2, dtype="float32", launch=launch)
    hand.read()
    text = hpcdl(package, "report", str(hand.folder)).stdout
    assert "Float32 is 2.00 times as fast as float64 (LeNet-5, numpy float32, 2 ranks)." in text


def test_a_command_that_is_dropped_in_is_listed_and_runs(package, hand):
    hand.train([[10.0] * 10], case="first")
    hand.read()
    assert "names of a run's cases" in hpcdl(package, "--help").stdout
    assert hpcdl(package, "cases", str(hand.folder)).stdout == "first\n"
    missing = hpcdl(package, "cases", "nowhere")
    assert missing.returncode == 2
    assert missing.stderr.startswith("hpcdl: nowhere")
    assert hpcdl(package, "csaes").stderr == "hpcdl: csaes: unknown command; did you mean 'cases'?\n"


@pytest.fixture
def folder(tmp_path):
    """Return a user's folder with the scheme and the strategy as modules."""
    (tmp_path / "my_scheme.py").write_text(EXAMPLES["aggregation/line.py"], encoding="utf-8")
    (tmp_path / "my_strategy.py").write_text(EXAMPLES["training/in_one_piece.py"], encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("file", "checks"),
    [("aggregation/line", 7), ("training/in_one_piece", 5), ("models/two_layers", 3), ("compression/in_turn", 4)],
)
def test_the_examples_pass_their_contracts(package, tmp_path, file, checks):
    """By their names, and as modules of a user's folder."""
    name = file.partition("/")[2]
    (tmp_path / "mine.py").write_text(EXAMPLES[f"{file}.py"], encoding="utf-8")
    own = {"in_turn": "InTurn"}.get(name, name)
    for folder, said in ((package, name), (tmp_path, f"mine:{own}")):
        done = hpcdl(folder, "check", said, root=package)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.count("ok ") == len(done.stdout.splitlines()) == checks


BLOCKED = "await comm.recv(session.replica.gradients, 0); await session.reduce("


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        (
            "step, comm.rank, comm.size)",
            "step, 0, comm.size + 1)",
            "FAILED   each image of the batches once: not on",
        ),
        ("await session.reduce(", BLOCKED, "FAILED   trains: "),
    ],
)
def test_a_wrong_strategy_breaks_its_contract(folder, right, wrong, message):
    file = folder / "my_strategy.py"
    file.write_text(file.read_text(encoding="utf-8").replace(right, wrong), encoding="utf-8")
    done = hpcdl(folder, "check", "my_strategy:in_one_piece")
    assert done.returncode == 1, done.stdout + done.stderr
    assert message in done.stdout


def test_the_strategy_can_be_replayed_and_predicted(folder):
    (folder / "suite.toml").write_text(REPLAY, encoding="utf-8")
    done = hpcdl(folder, "predict", "suite.toml", "--network", "ethernet-10g", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads(done.stdout)["cases"]
    assert row["training"] == "my_strategy:in_one_piece"
    assert row["predicted_seconds"] > row["compute_seconds"]


@pytest.mark.slow
def test_the_examples_run(package):
    (package / "suite.toml").write_text(SUITE, encoding="utf-8")
    done = hpcdl(package, "run", "suite.toml", "-n", "1", "-o", "out")
    assert done.returncode == 0, done.stdout + done.stderr
    _, trained, barrier = json.loads(hpcdl(package, "report", "out", "--json").stdout)["cases"]
    assert trained["final_accuracy"] > 0.9
    assert barrier["time_p50_seconds"] > 0


@pytest.mark.slow
def test_the_examples_pass_the_gate_of_the_project(package):
    for command in (["ruff", "check"], ["ruff", "format", "--check"], ["mypy"]):
        files = [f"hpcdl/{name}" for name in EXAMPLES]
        done = ended([sys.executable, "-m", *command, *files], package)
        assert done.returncode == 0, done.stdout
