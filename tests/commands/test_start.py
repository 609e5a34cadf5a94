"""The start of MPI has a time limit: a launcher may not notice that a process ended before it."""

import os
import subprocess

from .conftest import LIMIT

ONE_IS_MISSING = """
import os, sys
from hpcdl.launch.library import load, start
load()
if "1" in (os.environ.get("PMI_RANK"), os.environ.get("OMPI_COMM_WORLD_RANK")):
    os._exit(0)
start(limit=2)
"""


def test_a_rank_does_not_wait_forever_for_one_that_never_starts_mpi(each):
    command = [*each.mpirun(2), each.python, "-c", ONE_IS_MISSING]
    leave = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    done = subprocess.run(
        command, env={**os.environ, **leave}, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.returncode != 0
    assert "Timeout" in done.stdout + done.stderr or each.is_openmpi  # whose launcher notices


def test_python_without_docstrings_is_refused(hpcdl):
    command = [hpcdl.python, "-OO", "-m", "hpcdl", "list", "aggregation"]
    done = subprocess.run(
        command, env=hpcdl.environment(), capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "hpcdl: python -OO removes the docstrings that state costs; use -O at most\n"
