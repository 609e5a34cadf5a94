"""Modules never come from the current folder, and from the suite's folder only for names with a colon."""

import subprocess

import pytest

from .conftest import LIMIT

RING = """
from hpcdl.aggregation.ring import ring
import beside

async def my_ring(comm, buffer):
    '''Ring of a user.'''
    await ring(comm, buffer)
"""
CASES = """
[[case]]
kind = "collective"
collective = "allreduce"
aggregation = "mine:my_ring"
ranks = 2
message_bytes = 64
repetitions = 3
warmup = 0
"""


@pytest.fixture
def run(request, hpcdl):
    """Return run(suite, ...): hpcdl run in another folder, as a script or by ``python -m``."""
    program = [hpcdl.bin / "hpcdl"] if getattr(request, "param", None) == "script" else hpcdl.hpcdl()
    here = hpcdl.folder / "current"
    here.mkdir()
    environment = hpcdl.environment()
    del environment["PYTHONPATH"]

    def execute(suite, *arguments):
        command = [*map(str, program), "run", str(suite), *arguments]
        return subprocess.run(
            command, cwd=here, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False
        )

    return execute


@pytest.mark.parametrize("run", ["script", "module"], indirect=True)
def test_a_name_with_a_colon_finds_a_module_in_the_suites_folder_and_the_current_one_has_none(run, hpcdl):
    for name in ("json", "numpy", "mpi4py", "argparse", "pandas"):
        (hpcdl.folder / "current" / f"{name}.py").write_text("open('imported', 'w')\nraise SystemExit(9)\n")
    (hpcdl.folder / "mine.py").write_text(RING)
    (hpcdl.folder / "beside.py").write_text("")
    (hpcdl.folder / "json.py").write_text("raise SystemExit(9)\n")
    done = run(hpcdl.suite(CASES), "-o", "out")
    assert done.returncode == 0, done.stderr
    assert "mine:my_ring" in done.stdout
    assert not (hpcdl.folder / "current" / "imported").exists()


def test_a_module_of_the_current_folder_is_not_found(run, hpcdl):
    (hpcdl.folder / "current" / "mine.py").write_text(RING)
    done = run(hpcdl.suite(CASES))
    assert done.returncode == 2
    assert "cannot load 'mine:my_ring': ModuleNotFoundError" in done.stderr
    assert done.stderr.count("\n") == 1
