"""The commands of README's tour, in their order, in an empty folder; and what its run of several launches says."""

import json
import os
import re
import sys
from pathlib import Path

import pytest
from conftest import ended

import hpcdl as library

from .conftest import Install

README = (Path(__file__).parents[2] / "README.md").read_text()
TOO_FEW = 3
"""Exit code of a comparison of too few runs."""


def commands():
    """Return the commands of the tour, those with their input too."""
    tour = README[README.index("## A tour in ten minutes") : README.index("## I want to")]
    blocks = "".join(re.findall(r"```console\n(.*?)```", tour, re.DOTALL))
    return re.split(r"^\$ ", blocks, flags=re.MULTILINE)[1:]


@pytest.mark.slow
def test_every_command_of_the_tour_works(tmp_path):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    assert len(commands()) > 10
    outputs = {}
    for command in commands():
        done = ended(["/bin/bash", "-c", command], tmp_path, PATH=path)
        few = done.returncode == TOO_FEW and command.startswith(("hpcdl compare", "hpcdl history"))
        assert done.returncode == 0 or few, (command, done.stdout[-2000:], done.stderr[-2000:])
        outputs[command.strip()] = done.stdout
    made = {path.name for path in (tmp_path / "tour").iterdir()}
    assert {"mine.csv", "speedup.svg", "timeline.pftrace"} <= made
    checked = outputs["hpcdl check"].splitlines()
    assert all(line.split()[0] in {"ok", "unknown", "warning"} for line in checked)
    assert any("2 ranks on 1 host; a sum over them is right" in line for line in checked)
    # launches are reported together, and their folder takes no other run
    hpcdl, folder = Install(sys.executable, tmp_path), tmp_path / "tour/mine"
    launches = [f"tour/mine/launch-{number}" for number in (1, 2, 3)]
    for runs in ([*launches, "--together"], ["tour/mine"]):
        pooled = json.loads(hpcdl.here("report", *runs, "--json").stdout)
        # on a busy machine a launch may count as disturbed
        assert [case["launches"] + (case["launches_left_out"] or 0) for case in pooled["cases"]] == [3] * 4
    assert len(library.summary(folder)) == 4
    assert sorted(library.read(folder).cases["launch"]) == [1] * 4 + [2] * 4 + [3] * 4
    for words in ("tour/mine", "tour/mine --launches 1 --resume", "tour/mine/launch-1 --launches 2"):
        refused = hpcdl.here("run", "mine.toml", "-o", *words.split())
        assert refused.returncode == 2
        assert "choose another folder" in refused.stderr
    page = (folder / "report.md").read_text()
    assert page.startswith("# hpcdl: mine, 3 launches\n")
    assert "Command: `hpcdl run mine.toml --launches 3 -o tour/mine`" in page
    output = outputs["hpcdl run mine.toml --launches 3 -o tour/mine"]
    assert "launch 2 of 3 has ended: " in output
    assert output.count("\nhpcdl: ") == 1
