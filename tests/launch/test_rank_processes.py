"""The rank whose process ended first."""

import os
import subprocess
import tempfile
import time
from pathlib import Path
from socket import gethostname

import pytest

from hpcdl.launch import mpirun
from hpcdl.launch.mpirun import RankProcesses, announce
from hpcdl.launch.process import HEARTBEAT, STATUS


def sleeping(folder, rank, host=None):
    """Return a process that keeps the pipe of a rank open, as :func:`announce` does."""
    pipe = folder / f"rank-{rank}@{host or gethostname()}"
    script = 'mkfifo "$0.new"; exec 3<>"$0.new"; mv "$0.new" "$0"; exec sleep 60'
    process = subprocess.Popen(["/bin/bash", "-c", script, str(pipe)])
    while not pipe.exists():
        time.sleep(0.01)
    return process


def end(process):
    process.kill()
    process.wait()


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1], [1, 2, 0]])
def test_the_first_process_to_end_is_named(tmp_path, order):
    processes = [sleeping(tmp_path, rank) for rank in range(3)]
    with RankProcesses(tmp_path, 3) as watched:
        watched.watch()
        assert watched.first_ended() is None
        for rank in order:
            end(processes[rank])
        assert watched.first_ended() == order[0]


@pytest.mark.parametrize(
    ("ranks", "host", "before", "forgets"),
    [(3, None, False, False), (2, "elsewhere", False, False), (2, None, True, False), (2, None, False, True)],
    ids=["one without a process", "one on another host", "one ended before", "the launcher is killed"],
)
def test_no_rank_is_named_if_not_all_were_watched(tmp_path, ranks, host, before, forgets):
    processes = [sleeping(tmp_path, 0), sleeping(tmp_path, 1, host)]
    if before:
        end(processes.pop(0))
    with RankProcesses(tmp_path, ranks) as watched:
        watched.watch()
        if forgets:
            watched.forget()
        for process in processes:
            end(process)
        assert watched.first_ended() is None


def test_a_process_counts_as_ended_when_its_files_are_closed(tmp_path):
    """A pipe closes before the end of its process, which a launcher that sees it answers by killing the others."""
    first, second = sleeping(tmp_path, 0), sleeping(tmp_path, 1)
    with RankProcesses(tmp_path, 2) as watched:
        watched.watch()
        second.kill()  # its exit status is read last
        while watched.first_ended() is None:
            time.sleep(0.01)
        end(first)
        second.wait()
        assert watched.first_ended() == 1


def test_ranks_of_another_launcher_announce_nothing(tmp_path, monkeypatch):
    monkeypatch.delenv(STATUS, raising=False)
    announce(3)
    assert not [*tmp_path.iterdir()]


def test_a_rank_on_an_emulated_host_shows_that_it_has_started(tmp_path, monkeypatch):
    """Its pipe has the name of its host, which ``hpcdl run`` does not watch: a first compilation seemed to hang."""
    monkeypatch.setenv(STATUS, str(tmp_path / "status"))
    monkeypatch.setattr(mpirun, "gethostname", lambda: "host1")
    monkeypatch.setattr(mpirun, "monotonic", iter([0.0, 3.0]).__next__)
    announce(0)
    assert (tmp_path / HEARTBEAT).exists()


def test_only_new_segments_of_a_library_that_no_process_has_open_are_removed(tmp_path, monkeypatch):
    names = ["mpich_shm_older", "mpich_shm_dead", "ucx_shm_posix_dead", "mpich_shm_open", "sm_segment.vm.0", "x"]
    older, *dead, opened, linked, _ = names
    with tempfile.TemporaryDirectory(dir=mpirun.SEGMENTS) as folder:  # a temporary folder may lack leases
        monkeypatch.setattr(mpirun, "SEGMENTS", Path(folder))
        monkeypatch.setattr(mpirun, "sleep", lambda _: None)
        for name in names:
            Path(folder, name).write_bytes(b"x")
        os.utime(Path(folder, older), (0, 0))
        Path(folder, linked).unlink()
        Path(folder, linked).symlink_to(tmp_path)
        with Path(folder, opened).open():
            mpirun.remove_segments(tmp_path / "status", time.time() - 60)
        assert {path.name for path in Path(folder).iterdir()} == {*names} - {*dead}


def test_segments_are_removed_that_a_killed_process_closes_late(tmp_path, monkeypatch):
    """Its variables are gone before its files are closed."""
    with tempfile.TemporaryDirectory(dir=mpirun.SEGMENTS) as folder:
        monkeypatch.setattr(mpirun, "SEGMENTS", Path(folder))
        segment = Path(folder, "sm_segment.host.0.1.0")
        segment.write_bytes(b"x")
        opened = segment.open()
        monkeypatch.setattr(mpirun, "sleep", lambda _: opened.close())
        mpirun.remove_segments(tmp_path / "status", time.time() - 60)
        assert not segment.exists()
