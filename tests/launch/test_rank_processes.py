"""The rank whose process ended first."""

import subprocess

import pytest

from hpcdl.launch.mpirun import STATUS
from hpcdl.launch.rank_processes import RankProcesses, announce


def sleeping():
    return subprocess.Popen(["sleep", "60"])


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1], [1, 2, 0]])
def test_the_first_process_to_end_is_named(tmp_path, order):
    processes = [sleeping() for _ in order]
    with RankProcesses(tmp_path) as watched:
        for rank, process in enumerate(processes):
            (tmp_path / f"rank-{rank}").write_text(str(process.pid))
        watched.watch()
        assert watched.first_ended() is None
        for rank in order:
            processes[rank].kill()
            processes[rank].wait()
        assert watched.first_ended() == order[0]


def test_no_rank_is_named_if_one_was_not_watched(tmp_path):
    processes = [sleeping() for _ in range(2)]
    processes[0].kill()
    processes[0].wait()
    with RankProcesses(tmp_path) as watched:
        for rank, process in enumerate(processes):
            (tmp_path / f"rank-{rank}").write_text(str(process.pid))
        watched.watch()
        processes[1].kill()
        processes[1].wait()
        assert watched.first_ended() is None


def test_ranks_of_another_launcher_announce_nothing(tmp_path, monkeypatch):
    monkeypatch.delenv(STATUS, raising=False)
    announce(3)
    assert not [*tmp_path.iterdir()]
