"""Wrong usage ends with exit code 2 and one line on stderr, before anything has run."""

import argparse
import subprocess
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpcdl import suite
from hpcdl.cli import commands, main
from hpcdl.commands.parts.job import folder_of

from .conftest import LIMIT, TRAIN

FINE = f"{TRAIN}ranks = 2\nsteps = 3\n"


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    """Return refuse(cases, *arguments), which returns the error message of the command; no rank starts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hpcdl.launch.mpirun.subprocess", None)

    def refuse(cases, *arguments):
        (tmp_path / "s.toml").write_text(f'[suite]\nname = "s"\n{cases}')
        assert main(["run", "s.toml", *arguments]) == 2
        out, err = capsys.readouterr()
        assert not out
        assert err.startswith("hpcdl: ")
        assert err.count("\n") == 1
        assert not list(tmp_path.rglob("parts/*"))
        return err

    return refuse


def test_arguments_that_do_not_fit_the_suite(refused):
    for arguments, message in [
        (["-n", "1"], "-n 1: the suite 's' has cases of 2 ranks; use --case or --set case.ranks=..."),
        (["-n", "0"], "-n 0: must be at least 1"),
        (["-n", "-2"], "-n -2: must be at least 1"),
        (["--case", "*tree*"], "--case '*tree*' matches none of the cases, such as 'train-lenet5-digits-"),
        (["--set", "steps=3"], "--set 'steps=3': write case.KEY=VALUE or suite.KEY=VALUE"),
        (["--set", "case.stepz=3"], "no case has the key 'stepz'; did you mean 'steps'?"),
        (
            ["--set", "case.aggregation=rign"],
            "s.toml: [[case]] 1: aggregation: unknown 'rign'; did you mean 'ring'?",
        ),
        (["--set", "case.ranks=5"], "global_batch: 48 is not divisible by ranks = 5; 45 and 50 are"),
        (["--set", "case.aggregation=nosuchmodule:thing"], "No module named 'nosuchmodule'"),
        (["-o", "s.toml/below"], "-o s.toml/below: cannot be written to: Not a directory"),
        (["-o", "s.toml"], "-o s.toml: cannot be written to: File exists"),
        (["-o", "/proc/nobody-may"], "-o /proc/nobody-may: cannot be written to: "),
        (["-o", "n" * 300], "cannot be written to: File name too long"),
    ]:
        assert message in refused(FINE, *arguments)


def test_unknown_arguments_are_refused_by_one_rank(monkeypatch, capsys):
    table = [
        ("", f"hpcdl: no command; valid names: {', '.join(sorted(commands()))}"),
        ("rnu s.toml", "hpcdl: rnu: unknown command; did you mean 'run'?"),
        ("--versoin", "hpcdl: --versoin: unknown option; did you mean '--version'?"),
        ("-x run", "hpcdl: -x: unknown option; did you mean '-h'?"),
        ("run", "hpcdl run: the following arguments are required: SUITE"),
        ("run --ranksx 3", "hpcdl run: --ranksx: unknown option; did you mean '--ranks'?"),
        ("run s.toml --dry-rum", "hpcdl run: --dry-rum: unknown option; did you mean '--dry-run'?"),
        ("run s.toml t.toml", "hpcdl run: t.toml: one argument too many"),
        ("run s.toml -n", "hpcdl run: -n/--ranks: expected one argument"),
        ("run s.toml -n two", "hpcdl run: -n/--ranks: 'two' is not a whole number"),
        ("list agregation", "hpcdl list: SUBJECT: unknown 'agregation'; did you mean 'aggregation'?"),
        ("predict s.toml --netwrok=gemini", "hpcdl predict: --netwrok: unknown option; did you mean '--network'?"),
        ("testbed --hosts 2 -- x --rate 3", "hpcdl testbed: the following arguments are required: --rate"),
    ]
    for rank in (None, "0", "1"):
        if rank is not None:
            monkeypatch.setenv("PMI_SIZE", "2")
            monkeypatch.setenv("PMI_RANK", rank)
        for line, message in table:
            with pytest.raises(SystemExit) as ended:
                main(line.split())
            assert ended.value.code == 2
            assert capsys.readouterr() == ("", "" if rank == "1" else f"{message}\n")


def test_a_folder_with_a_run_is_not_overwritten(refused, tmp_path):
    (tmp_path / "o/parts").mkdir(parents=True)
    assert "-o o: holds a run already; add --resume or choose another folder" in refused(FINE, "-o", "o")


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


def test_a_dry_run_finds_wrong_data(refused, tmp_path):
    where = "s.toml: [[case]] 1: dataset: "
    (tmp_path / "images.h5").write_bytes(b"not at all")
    data = FINE.replace('dataset = "digits"', 'dataset = {name = "hdf5", path = "images.h5", crop = 224}')
    assert refused(data, "--dry-run").startswith(f"hpcdl: {where}images.h5: cannot be read: not HDF5")
    with h5py.File(tmp_path / "images.h5", "w", locking=False) as file:
        file["train/images"] = np.zeros((4, 8, 8, 3), np.uint8)
    assert refused(data, "--dry-run") == f"hpcdl: {where}images.h5: lacks train/images or train/labels\n"
    (tmp_path / "test.bin").write_bytes(b"")
    data = FINE.replace('dataset = "digits"', 'dataset = {name = "cifar100", path = "."}')
    assert refused(data, "--dry-run").startswith(f"hpcdl: {where}train.bin: missing")


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
