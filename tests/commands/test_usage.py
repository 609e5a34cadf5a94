"""Wrong usage ends with exit code 2 and one line on stderr, before anything has run."""

import argparse
import subprocess
from pathlib import Path

import pytest

from hpcdl import suite
from hpcdl.commands.parts.job import folder_of

from .conftest import LIMIT, TRAIN


def test_runs_that_start_within_a_second_have_different_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    chosen = suite.load(Path("quickstart"))
    options = argparse.Namespace(folder=None, resume=False, launches=1)
    folders = []
    for _ in range(5):
        folders.append(folder_of(options, chosen))
        folders[-1].mkdir(parents=True)
    assert len(set(folders)) == 5
    assert all(folder.name.startswith("quickstart-20") for folder in folders)


BAD = [
    ("rank = 2", "s.toml: [[case]] 1: rank: unknown key; did you mean 'ranks'?"),
    ("ranks = 0", "s.toml: [[case]] 1: ranks: must be at least 1, not 0"),
    ("ranks = 5", "s.toml: [[case]] 1: global_batch: 48 is not divisible by ranks = 5; 45 and 50 are"),
    ("ranks = ?", "s.toml: not TOML: Invalid value (at line 11, column 9)"),
]


@pytest.mark.parametrize(("line", "message"), BAD[::3])
def test_a_bad_suite_from_the_shell(hpcdl, line, message):
    suite = hpcdl.suite(TRAIN.lstrip(), "steps = 3", line, name="s")
    ended = hpcdl("run", suite.name, "-o", "o")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == f"hpcdl: {message}\n"
    assert not (hpcdl.folder / "o").exists()


@pytest.mark.parametrize(("line", "message"), BAD[2:3])
def test_a_bad_suite_under_a_launcher_is_reported_once(each, line, message):
    suite = each.suite(TRAIN.lstrip(), "steps = 3", line, name="s")
    ended = each("run", suite.name, "-o", "o", under=each.mpirun(2))
    assert ended.returncode == 2
    assert ended.stderr.count("hpcdl: ") == 1
    assert f"hpcdl: {message}\n" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (each.folder / "o").exists()


def test_a_job_with_too_few_ranks_is_refused(each):
    suite = each.suite(TRAIN, "steps = 3\nranks = [1, 2, 4]", name="s")
    ended = each("run", suite.name, "-o", "o", under=each.mpirun(2))
    assert ended.returncode == 2
    assert (
        "needs 4 ranks and this job has 2; start more ranks, or choose cases with --case or --set" in ended.stderr
    )
    assert ended.stderr.count("hpcdl: ") == 1
    assert not list(each.folder.glob("o/parts/*"))


@pytest.mark.parametrize(
    ("words", "completed"),
    [("run qui", "quickstart"), ("check halv", "halving_doubling"), ("run quickstart --case train", "-ring-p1-")],
)
def test_a_shell_completes_suites_schemes_and_cases(hpcdl, words, completed):
    line = f"hpcdl {words}"
    variables = {"COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n"}
    answer = subprocess.run(
        ["bash", "-c", '"$@" 8>&1 9>/dev/null >/dev/null', "-", *hpcdl.hpcdl()],
        env=hpcdl.environment(**variables),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert completed in answer.stdout
