"""The commands of README's tour, in their order, in an empty folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

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
    hpcdl = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{hpcdl}{os.pathsep}{os.environ['PATH']}"}
    assert len(commands()) > 10
    for command in commands():
        done = subprocess.run(
            ["/bin/bash", "-c", command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        few = done.returncode == TOO_FEW and command.startswith(("hpcdl compare", "hpcdl history"))
        assert done.returncode == 0 or few, (command, done.stdout[-2000:], done.stderr[-2000:])
    made = {path.name for path in (tmp_path / "tour").iterdir()}
    assert {"mine.csv", "speedup.svg", "timeline.pftrace"} <= made
