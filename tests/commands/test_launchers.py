"""Processes that a wrong launcher started must not each run the whole suite."""

import pytest

from .conftest import TRAIN

SMALL = f"{TRAIN}steps = 2\nranks = 1\n"


@pytest.mark.parametrize("name", ["SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PALS_NRANKS"])
def test_one_rank_in_a_job_of_four_is_a_mismatch(hpcdl, name):
    # what the library reads, it would act on: it is told nothing
    ended = hpcdl("run", hpcdl.suite(SMALL), "-o", "o", **{name: "4"})
    assert ended.returncode == 78
    assert ended.stderr.startswith("hpcdl: ")
    assert f"started 4 processes ({name}) " in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert not (hpcdl.folder / "o").exists()


def test_the_launcher_of_another_library_is_refused(hpcdl, other):
    """Each process would be alone, and some libraries would end it; the message comes before MPI starts."""
    suite = hpcdl.suite(SMALL)
    for ours, theirs in ((hpcdl, other), (other, hpcdl)):
        ended = ours("run", suite, "-o", "o", under=theirs.mpirun(2))
        assert ended.returncode == 78
        assert not (hpcdl.folder / "o").exists()
        assert ended.stderr.count("hpcdl: ") == 1
        assert "launcher and MPI library do not fit" in ended.stderr


def test_a_batch_script_without_srun_starts_its_own_ranks(either):
    """sbatch sets these variables where the script runs; this machine has no Slurm."""
    job = {"SLURM_NTASKS": "4", "SLURM_PROCID": "0"}
    ended = either("run", either.suite(f"{TRAIN}steps = 2\nranks = 2"), "-o", "o", **job)
    assert ended.returncode == 0, ended.stderr
    assert "[1/1] " in ended.stdout
