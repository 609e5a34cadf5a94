"""The rank whose process ended first."""

import subprocess
from socket import gethostname

import pytest

from hpcdl.launch.rank_processes import RankProcesses, announce
from hpcdl.launch.status_files import STATUS


def sleeping():
    return subprocess.Popen(["sleep", "60"])


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1], [1, 2, 0]])
def test_the_first_process_to_end_is_named(tmp_path, order):
    processes = [sleeping() for _ in order]
    with RankProcesses(tmp_path, 3) as watched:
        for rank, process in enumerate(processes):
            (tmp_path / f"rank-{rank}").write_text(f"{process.pid} {gethostname()}")
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
    with RankProcesses(tmp_path, 2) as watched:
        for rank, process in enumerate(processes):
            (tmp_path / f"rank-{rank}").write_text(f"{process.pid} {gethostname()}")
        watched.watch()
        processes[1].kill()
        processes[1].wait()
        assert watched.first_ended() is None


@pytest.mark.parametrize("ranks, host", [(3, gethostname()), (2, "elsewhere")])
def test_no_rank_is_named_if_some_run_on_other_hosts(tmp_path, ranks, host):
    processes = [sleeping() for _ in range(2)]
    with RankProcesses(tmp_path, ranks) as watched:
        for rank, (process, place) in enumerate(zip(processes, (gethostname(), host), strict=True)):
            (tmp_path / f"rank-{rank}").write_text(f"{process.pid} {place}")
        watched.watch()
        for process in processes:
            process.kill()
            process.wait()
        assert watched.first_ended() is None


def test_no_rank_is_named_if_the_launcher_is_killed(tmp_path):
    process = sleeping()
    with RankProcesses(tmp_path, 1) as watched:
        (tmp_path / "rank-0").write_text(f"{process.pid} {gethostname()}")
        watched.watch()
        watched.forget()
        process.kill()
        process.wait()
        assert watched.first_ended() is None


def test_ranks_of_another_launcher_announce_nothing(tmp_path, monkeypatch):
    monkeypatch.delenv(STATUS, raising=False)
    announce(3)
    assert not [*tmp_path.iterdir()]
