"""A command that lacks an optional package says in one line which extra installs it."""

import re
import sys
import tomllib
from pathlib import Path

import pytest
from test_imports import FILES, imports

from hpcdl.cli import main
from hpcdl.extras import OPTIONAL, missing

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
COMMANDS = {
    "jinja2": ["report RUN -o x.html", "compare RUN --with RUN -o x.html", "history RUN -o x.html"],
    "matplotlib": ["report RUN -o x.html", "report RUN -o x.svg", "report RUN --figure list"],
    "perfetto": ["trace RUN -o x.pftrace"],
    "google": ["trace RUN -o x --format chakra", "layers x.et"],
    "cupy": ["run quickstart --dry-run --set case.backend='cupy'"],
}


@pytest.mark.parametrize(
    ("module", "command"), [(module, each) for module in COMMANDS for each in COMMANDS[module]]
)
def test_a_command_names_the_extra_that_it_lacks(hand, tmp_path, monkeypatch, capsys, module, command):
    hand.train([[2.0] * 8] * 2, events=[[(0, "forward", 0, 10, -1, 0)]] * 2).read()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.et").write_bytes(b"")
    for name in [name for name in sys.modules if name.startswith(f"{module}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    assert main(command.replace("RUN", str(tmp_path)).replace("'", '"').split()) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1), err
    assert OPTIONAL[module][0] in err and OPTIONAL[module][1] in err


def test_every_package_is_required_or_has_an_extra_that_exists():
    needed = {re.match(r"[\w-]+", line)[0] for line in PROJECT["dependencies"]}
    used = {name.partition(".")[0] for path in FILES for name in imports(path)} - sys.stdlib_module_names
    brought_along = {"llvmlite", "markupsafe"}  # by numba and Jinja2
    assert used - needed - brought_along - {"hpcdl"} == OPTIONAL.keys()
    for _, remedy in OPTIONAL.values():
        assert {*re.findall(r"hpcdl\[([\w-]+)\]", remedy)} <= PROJECT["optional-dependencies"].keys()
    assert not missing("numpy") and not missing(None)
