"""Modules never come from the current folder, and from the suite's folder only for names with a colon."""

import pytest

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
    (hpcdl.folder / "current").mkdir()
    command = 'cd current; unset PYTHONPATH; exec "$@"'
    return lambda *arguments: hpcdl.run(["sh", "-c", command, "sh", *program, "run", *arguments])


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
