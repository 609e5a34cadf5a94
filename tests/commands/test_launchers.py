"""Processes that a wrong launcher started must not each run the whole suite."""

import pytest

from .conftest import TRAIN

SMALL = f"{TRAIN}steps = 2\nranks = 1\n"


def test_one_rank_in_a_job_of_four_is_a_mismatch(hpcdl):
    # what the library reads, it would act on: it is told nothing
    ended = hpcdl("run", hpcdl.suite(SMALL), "-o", "o", SLURM_STEP_NUM_TASKS="4")
    assert ended.returncode == 78
    assert ended.stderr.startswith("hpcdl: ")
    assert "started 4 processes (SLURM_STEP_NUM_TASKS) " in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert not (hpcdl.folder / "o").exists()


def test_a_variable_of_an_ended_launcher_is_named_where_ranks_are_missing(hpcdl):
    suite = hpcdl.suite(SMALL.replace("ranks = 1", "ranks = 2"))
    ended = hpcdl("run", suite, "-o", "o", PMI_SIZE="1")
    assert ended.returncode == 2
    assert "needs 2 ranks and this job has 1; start more ranks" in ended.stderr
    assert "; if no launcher started this process: env -u PMI_SIZE" in ended.stderr
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ("5", "s.toml: [[case]] 1: global_batch: 48 is not divisible by ranks = 5; 45 and 50 are\n"),
        ("[1, 2, 4]", "needs 4 ranks and this job has 2; start more ranks, or choose cases with --case or --set"),
    ],
)
def test_what_a_job_cannot_run_is_reported_once(each, ranks, message):
    suite = each.suite(TRAIN, f"steps = 3\nranks = {ranks}", name="s")
    ended = each("run", suite.name, "-o", "o", under=each.mpirun(2))
    assert ended.returncode == 2
    assert message in ended.stderr
    assert ended.stderr.count("hpcdl: ") == 1
    assert "Traceback" not in ended.stderr
    assert not list(each.folder.glob("o/parts/*"))


def test_a_missing_library_is_one_line(either):
    """All ranks lack it, and each would print a traceback."""
    missing = {"MPI4PY_LIBMPI": str(either.folder / "libmpi.so")}
    suite = either.suite(SMALL.replace("ranks = 1", "ranks = 2"))
    for command in (("run", suite), ("tune", "allreduce", "-n", "2")):
        ended = either(*command, "-o", command[0], **missing)
        assert ended.returncode == 2
        assert ended.stderr.startswith("hpcdl: no MPI library: cannot load MPI library ")
        assert ended.stderr.endswith("load your site's MPI module, or set MPI4PY_LIBMPI\n")
        assert ended.stderr.count("\n") == 1


def test_the_launcher_of_another_library_is_refused(hpcdl, other):
    """Each process would be alone, and some libraries would end it; the message comes before MPI starts."""
    suite = hpcdl.suite(SMALL)
    for ours, theirs in ((hpcdl, other), (other, hpcdl)):
        ended = ours("run", suite, "-o", "o", under=theirs.mpirun(2))
        assert ended.returncode == 78
        assert not (hpcdl.folder / "o").exists()
        assert ended.stderr.count("hpcdl: ") == 1
        assert "launcher and MPI library do not fit" in ended.stderr


ONE_IS_MISSING = """
import os, sys
from hpcdl.launch.process import load, start
load()
if "1" in (os.environ.get("PMI_RANK"), os.environ.get("OMPI_COMM_WORLD_RANK")):
    os._exit(0)
start(limit=2)
"""


def test_a_rank_does_not_wait_forever_for_one_that_never_starts_mpi(each):
    done = each.run([*each.mpirun(2), each.python, "-c", ONE_IS_MISSING])
    assert done.returncode != 0
    assert "Timeout" in done.stdout + done.stderr or each.is_openmpi  # whose launcher notices


def test_python_without_docstrings_is_refused(hpcdl):
    done = hpcdl.run([hpcdl.python, "-OO", "-m", "hpcdl", "list", "aggregation"])
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "hpcdl: python -OO removes the docstrings that state costs; use -O at most\n"
