"""The folder of a run without ``-o``: a new one, or the one that ``--resume`` selects."""

import argparse
import os

import numpy as np
import pytest

from hpcdl.commands.parts.job import folder_of, newest_unfinished
from hpcdl.trace.recorder import CaseRecord, Recorder
from hpcdl.trace.schema import merge, write_part


@pytest.fixture
def run(tmp_path):
    """Return run(folder, when, suite, complete), which makes a run; complete=None: not merged."""

    def make(name, when, suite="s", complete=None):
        folder = tmp_path / name
        (folder / "parts").mkdir(parents=True)
        part = folder / "parts/0000-x.h5"
        fields = {"kind": "train", "suite": suite, "ranks": np.int64(1)}
        write_part(part, CaseRecord(fields, [Recorder().pack()]))
        if complete is not None:
            merge([part], folder / "run.h5", {}, "", complete=complete)
        (folder / "log.txt").touch()
        os.utime(folder / "log.txt", (when, when))
        return folder

    return make


def test_the_most_recently_written_run_that_is_not_finished_or_empty(run, tmp_path):
    run("whole", 70, complete=True)
    (tmp_path / "empty/parts").mkdir(parents=True)
    (tmp_path / "empty/log.txt").touch()
    (tmp_path / "a-file").touch()
    for folder in (tmp_path, tmp_path / "nowhere"):
        assert newest_unfinished(folder, "s") is None
    run("a", 30)
    newest = run("b", 40, complete=False)
    run("c", 50, complete=True)
    run("d", 60, suite="another")
    assert newest_unfinished(tmp_path, "s") == newest


def test_launches_are_one_run_that_ends_with_the_last(run, tmp_path):
    for number in (1, 2):
        run(f"three/launch-{number}", 50, complete=True)
        run(f"two/launch-{number}", 60, complete=True)
    run("alone", 70)
    assert newest_unfinished(tmp_path, "s", launches=3) == tmp_path / "two"
    assert newest_unfinished(tmp_path, "s", launches=2) is None
    assert newest_unfinished(tmp_path, "s") == tmp_path / "alone"


def test_runs_that_start_within_a_second_have_different_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = argparse.Namespace(folder=None, resume=False, launches=1)
    folders = []
    for _ in range(5):
        folders.append(folder_of(options, argparse.Namespace(name="quickstart")))
        folders[-1].mkdir(parents=True)
    assert len(set(folders)) == 5
    assert all(folder.name.startswith("quickstart-20") for folder in folders)


def test_a_pipe_in_a_run_folder_is_passed_over(run, tmp_path):
    folder = run("a", 1)
    for name in ("run.h5", "parts/0000-y.h5", "parts/0001.started"):
        os.mkfifo(folder / name)
        assert newest_unfinished(tmp_path, "s") == folder
