"""The rank whose process ended first."""

import subprocess
import time
from socket import gethostname

import pytest

from hpcdl.launch.mpirun import RankProcesses, announce
from hpcdl.launch.process import STATUS


def sleeping(folder, rank, host=None):
    """Return a process that keeps the pipe of a rank open, as :func:`announce` does."""
    pipe = folder / f"rank-{rank}@{host or gethostname()}"
    script = 'mkfifo "$0.new"; exec 3<>"$0.new"; mv "$0.new" "$0"; exec sleep 60'
    process = subprocess.Popen(["/bin/bash", "-c", script, str(pipe)])
    while not pipe.exists():
        time.sleep(0.01)
    return process


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1], [1, 2, 0]])
def test_the_first_process_to_end_is_named(tmp_path, order):
    processes = [sleeping(tmp_path, rank) for rank in range(3)]
    with RankProcesses(tmp_path, 3) as watched:
        watched.watch()
        assert watched.first_ended() is None
        for rank in order:
            processes[rank].kill()
            processes[rank].wait()
        assert watched.first_ended() == order[0]


def test_no_rank_is_named_if_one_was_not_watched(tmp_path):
    processes = [sleeping(tmp_path, rank) for rank in range(2)]
    processes[0].kill()
    processes[0].wait()
    with RankProcesses(tmp_path, 2) as watched:
        watched.watch()
        processes[1].kill()
        processes[1].wait()
        assert watched.first_ended() is None


@pytest.mark.parametrize("ranks, host", [(3, gethostname()), (2, "elsewhere")])
def test_no_rank_is_named_if_some_run_on_other_hosts(tmp_path, ranks, host):
    processes = [sleeping(tmp_path, 0), sleeping(tmp_path, 1, host)]
    with RankProcesses(tmp_path, ranks) as watched:
        watched.watch()
        for process in processes:
            process.kill()
            process.wait()
        assert watched.first_ended() is None


def test_no_rank_is_named_if_the_launcher_is_killed(tmp_path):
    process = sleeping(tmp_path, 0)
    with RankProcesses(tmp_path, 1) as watched:
        watched.watch()
        watched.forget()
        process.kill()
        process.wait()
        assert watched.first_ended() is None


def test_a_process_counts_as_ended_when_its_files_are_closed(tmp_path):
    """A pipe closes before the end of its process, which a launcher that sees it answers by killing the others."""
    first, second = sleeping(tmp_path, 0), sleeping(tmp_path, 1)
    with RankProcesses(tmp_path, 2) as watched:
        watched.watch()
        second.kill()  # its exit status is read last
        while watched.first_ended() is None:
            time.sleep(0.01)
        first.kill()
        first.wait()
        second.wait()
        assert watched.first_ended() == 1


def test_ranks_of_another_launcher_announce_nothing(tmp_path, monkeypatch):
    monkeypatch.delenv(STATUS, raising=False)
    announce(3)
    assert not [*tmp_path.iterdir()]
