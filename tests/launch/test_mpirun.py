"""Choice of the launcher, its options, and the way of the exit code."""

import os
import signal
import stat
import sys
from functools import partial

import pytest

from hpcdl.launch import mpirun, process
from hpcdl.run.relaunch import run_job


@pytest.fixture
def bins(tmp_path, monkeypatch):
    """Make an empty bin folder of this Python, and an empty PATH."""
    own, path = tmp_path / "own", tmp_path / "path"
    own.mkdir()
    path.mkdir()
    monkeypatch.setattr(mpirun.sysconfig, "get_path", lambda _name: str(own))
    monkeypatch.setenv("PATH", str(path))
    return own, path


@pytest.fixture(autouse=True)
def handlers():
    """Restore the signal handlers, which run_job replaces."""
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def script(file, text=""):
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return file


def test_the_launcher_of_this_python_comes_before_the_path(bins):
    own, path = bins
    with pytest.raises(mpirun.NoLauncher, match="no mpirun found: pip install"):
        mpirun.mpirun()
    elsewhere = script(path / "mpirun")
    assert mpirun.mpirun() == elsewhere
    script(own / "mpiexec")
    assert mpirun.mpirun() == elsewhere
    assert script(own / "mpirun") == mpirun.mpirun()


@pytest.mark.parametrize(
    ("version", "cores", "flags"),
    [
        ("HYDRA build details: Version: 5.0.2", 2, []),
        ("mpirun (Open MPI) 5.0.11", 8, ["--map-by", ":OVERSUBSCRIBE"]),
        ("mpirun (Open MPI) 5.0.11", 2, ["--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"]),
    ],
)
def test_flags_are_those_that_the_library_needs(bins, monkeypatch, version, cores, flags):
    launcher = script(bins[0] / "mpirun", f"echo '{version}'")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(cores)))
    monkeypatch.setattr(mpirun.sys, "executable", "python")
    assert mpirun.python_command(4, ["x"]) == [str(launcher), *flags, "-n", "4", "python", "-P", "x"]
    more = ["--with-ft", "ulfm"] if flags else []
    tolerant = mpirun.python_command(4, ["x.py"], fault_tolerant=True)
    assert tolerant == [str(launcher), *flags, *more, "-n", "4", "python", "-P", "x.py"]


def test_jobs_that_continue_after_a_failure():
    assert "MPICH ends the job when a rank fails" in mpirun.fault_tolerance_obstacle({}, "MPICH")
    assert "--with-ft ulfm" in mpirun.fault_tolerance_obstacle({}, "Open MPI")
    assert mpirun.fault_tolerance_obstacle({"OMPI_MCA_mpi_ft_enable": "1"}, "Open MPI") is None


def test_the_status_relaunch_is_for_hpcdl_only(tmp_path, monkeypatch):
    monkeypatch.delenv(process.STATUS, raising=False)
    assert process.write_status(process.RELAUNCH, 0) == 75
    monkeypatch.setenv(process.STATUS, str(tmp_path / "status"))
    assert process.write_status(process.RELAUNCH, 0) == 0
    assert (tmp_path / "status").read_text().split() == [str(process.RELAUNCH)]


def test_the_exit_code_comes_from_rank_0_and_not_from_the_launcher(bins, tmp_path):
    status = tmp_path / "status"
    script(bins[0] / "mpirun", f'[ "$1" = --version ] || {{ printf 75 > "${process.STATUS}"; exit 9; }}')
    job = partial(run_job, 2, [], [], status, tmp_path, fault_tolerant=False)
    assert job() == (75, None)
    script(bins[0] / "mpirun", f'[ "$1" = --version ] || {{ : > "${process.STATUS}"; exit 9; }}')  # on a full disk
    assert job() == (1, None)
    script(bins[0] / "mpirun", "exit 9")
    assert job() == (None, None)


RANK = """
import errno, os
from hpcdl.launch import process
process.load()
process.start()
with process.abort_on_error():
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
"""


def test_an_error_of_rank_0_arrives_although_the_launcher_loses_its_output(bins, tmp_path, capfd):
    (tmp_path / "rank.py").write_text(RANK)
    rank = f"{sys.executable} {tmp_path}/rank.py > /dev/null 2>&1"
    script(bins[0] / "mpirun", f'[ "$1" = --version ] || {rank}')
    assert run_job(1, [], [], tmp_path / "status", tmp_path, fault_tolerant=False) == (1, None)
    assert capfd.readouterr().err == "hpcdl: rank 0: [Errno 28] No space left on device\n"
