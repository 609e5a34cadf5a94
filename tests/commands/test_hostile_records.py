"""Names in a file of a run import nothing and call nothing, whatever reads the file."""

import json
import sys

import pytest
from conftest import TRAINING

from hpcdl import registry
from hpcdl.cli import main

OWN = {"name": "hostile_module:call", "command": "x"}
FIELDS = ["model", "dataset", "backend", "training", "aggregation", "compression", "optimizer", "schedule"]
SETTINGS = {name: TRAINING[name] for name in FIELDS if name in TRAINING}
SETTINGS |= {"learning_rate": 0.1, "steps": 6, "global_batch": 64}


@pytest.fixture
def module(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_typed", set())
    (tmp_path / "hostile_module.py").write_text("def call(*_, **__):\n    raise SystemExit('called')\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "hostile_module"
    sys.modules.pop("hostile_module", None)


COMMANDS = """
report . --json
report . -o page.html
compare . --with .
history .
trace . -o run.pftrace --case c
trace . -o run.goal --format goal --case c
predict . --network gemini --ranks 2,4
predict . --network .
predict . --network gemini --ranks 4 --parallelism
"""


@pytest.mark.parametrize("field", [*FIELDS, "inner"])
def test_no_name_in_a_record_is_imported(field, module, hand, tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    inside = {"aggregation": {"name": "hierarchical", "inner": OWN["name"]}} if field == "inner" else {field: OWN}
    text = json.dumps({**SETTINGS, **inside})
    hand.train(
        [[9.0] * 6] * 2, **({field: "hostile_module:call(command=x)"} if field in TRAINING else {}), settings=text
    )
    hand.case(
        [[1.0] * 8] * 2,
        case="sums", kind="collective", collective="allreduce", aggregation=OWN["name"], message_bytes=64,
        settings=json.dumps({"aggregation": OWN, "collective": "allreduce", "message_bytes": 64}),
    )  # fmt: skip
    hand.read({"date": "2026-11-01T03:00:00+00:00"}, "[suite]\nname = 's'\n")
    for command in COMMANDS.strip().splitlines():
        code = main(command.split())
        assert code in {0, 1, 2, 3}, command
        said = capfd.readouterr().err
        assert code != 2 or said.count("\n") == 1, command
        assert module not in sys.modules, command


@pytest.mark.parametrize("typed", [OWN["name"], [{"aggregation": [{"inner": OWN["name"]}]}]])
def test_a_name_that_the_user_typed_is_imported(typed, module, tmp_path):
    with pytest.raises(ValueError, match="only a suite or an option may name"):
        registry.find("models", OWN["name"] + "s")
    registry.trust(typed, tmp_path)
    assert registry.find("models", OWN["name"]).__module__ == module
