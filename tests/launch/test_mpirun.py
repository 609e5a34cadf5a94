"""Which launcher is taken, with which flags, and how the exit code comes back past it."""

import os
import signal
import stat

import pytest

from hpcdl.launch import mpirun


@pytest.fixture
def bins(tmp_path, monkeypatch):
    """An empty bin folder of this Python, and an empty PATH."""
    own, path = tmp_path / "own", tmp_path / "path"
    own.mkdir()
    path.mkdir()
    monkeypatch.setattr(mpirun.sysconfig, "get_path", lambda _name: str(own))
    monkeypatch.setenv("PATH", str(path))
    return own, path


@pytest.fixture(autouse=True)
def handlers():
    """Self-launching is the last thing a process does, so it leaves its signal handlers behind."""
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
    with pytest.raises(mpirun.NoLauncher, match="there is no mpirun: pip install"):
        mpirun.mpirun()
    elsewhere = script(path / "mpirun")
    assert mpirun.mpirun() == elsewhere
    ours = script(own / "mpiexec")
    assert mpirun.mpirun() == elsewhere
    ours = script(own / "mpirun")
    assert mpirun.mpirun() == ours


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
    assert mpirun.python_command(4, ["-m", "hpcdl"]) == [str(launcher), *flags, "-n", "4", "python", "-m", "hpcdl"]
    more = ["--with-ft", "ulfm"] if flags else []
    tolerant = mpirun.python_command(4, ["x.py"], tolerant=True)
    assert tolerant == [str(launcher), *flags, *more, "-n", "4", "python", "x.py"]


def test_who_goes_on_without_a_rank():
    assert "MPICH ends the job when a rank dies" in mpirun.intolerance({}, "MPICH")
    assert "--with-ft ulfm" in mpirun.intolerance({}, "Open MPI")
    assert mpirun.intolerance({"OMPI_MCA_mpi_ft_enable": "1"}, "Open MPI") is None


def test_a_job_that_is_to_be_started_again_says_so_to_hpcdl_only(tmp_path, monkeypatch):
    monkeypatch.delenv(mpirun.STATUS, raising=False)
    assert mpirun.leave_status(mpirun.AGAIN, 0) == 75
    monkeypatch.setenv(mpirun.STATUS, str(tmp_path / "status"))
    assert mpirun.leave_status(mpirun.AGAIN, 0) == 0
    assert (tmp_path / "status").read_text() == str(mpirun.AGAIN)


def test_the_exit_code_comes_from_rank_0_and_not_from_the_launcher(bins, tmp_path):
    status = tmp_path / "status"
    script(bins[0] / "mpirun", f'[ "$1" = --version ] || {{ printf 75 > "${mpirun.STATUS}"; exit 9; }}')
    assert mpirun.self_launch(2, [], status) == 75
    status.unlink()
    script(bins[0] / "mpirun", "exit 9")
    assert mpirun.self_launch(2, [], status) is None


def test_only_rank_0_leaves_its_code_and_only_to_hpcdl(tmp_path, monkeypatch):
    monkeypatch.delenv(mpirun.STATUS, raising=False)
    assert mpirun.leave_status(75, 0) == 75
    status = tmp_path / "status"
    monkeypatch.setenv(mpirun.STATUS, str(status))
    assert mpirun.leave_status(75, 1) == 0
    assert not status.exists()
    assert mpirun.leave_status(75, 0) == 0
    assert status.read_text() == "75"
