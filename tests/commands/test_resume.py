"""--resume: finished cases, and machines that may continue a run."""

import json
import shutil
import sys

import h5py
import pytest
from contract.traces import changed

from hpcdl.launch.testbed import TESTBED

from .conftest import Install

CASES = """
[[case]]
kind = "collective"
collective = "allreduce"
aggregation = ["ring", "tree", "bruck", "direct", "native"]
ranks = 2
message_bytes = 64
repetitions = 3
warmup = 0
"""

SETTINGS = {"hosts": 2, "rate": "200mbit", "slow": {}, "bytes_per_second": {"host1": 1, "host2": 1}}
EMULATED = {TESTBED: json.dumps(SETTINGS)}


def parts(folder):
    return sorted((folder / "parts").glob("*.h5"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the folder of a finished run on emulated hosts; tests begin with a copy."""
    install = Install(sys.executable, tmp_path_factory.mktemp("whole"))
    done = install("run", install.suite(CASES), "-o", "out", **EMULATED)
    assert done.returncode == 0, done.stderr
    return install.folder / "out"


@pytest.fixture
def folder(hpcdl, whole):
    """Return the folder of a run without its last case."""
    folder = hpcdl.folder / "out"
    shutil.copytree(whole, folder)
    parts(folder)[-1].unlink()
    return folder


def test_the_case_of_a_damaged_part_runs_again_and_one_line_reports_it(hpcdl, folder):
    emptied, cut, mistyped, sound = parts(folder)
    with changed(emptied) as file:
        del file["cases/000000"]
    cut.write_bytes(cut.read_bytes()[:-100])
    with changed(mistyped) as file:
        file["cases/000000"].attrs["nodes"] = "two"
    before = sound.read_bytes()
    partial = folder / "parts/.0.partial"  # of a rank that was killed
    partial.touch()
    done = hpcdl("run", hpcdl.suite(CASES), "-o", "out", "--resume", **EMULATED)
    assert done.returncode == 0, done.stderr
    assert not partial.exists()
    for part in (emptied, cut, mistyped):
        (line,) = (line for line in done.stdout.splitlines() if part.name in line)
        assert "its case runs again" in line
    assert "resuming: 1 of 5 cases are finished" in done.stdout
    assert "The cases ran in" not in (folder / "report.md").read_text()
    assert len(parts(folder)) == 5
    assert sound.read_bytes() == before
    with h5py.File(folder / "run.h5") as file:
        assert len(file["cases"]) == 5
        assert file.attrs["complete"]


def test_another_environment_continues_only_with_mix_environments(hpcdl, other, folder):
    """Cases of emulated hosts stay marked after resuming without them."""
    report = (folder / "report.md").read_bytes()
    refused = other("run", other.suite(CASES), "-o", "out", "--resume")
    assert refused.returncode == 2
    (line,) = refused.stderr.splitlines()
    assert "its finished cases ran on another machine or library: " in line
    assert "mpi was " in line
    assert "emulated was " in line
    assert "--mix-environments" in line
    assert (folder / "report.md").read_bytes() == report
    told = other("run", other.suite(CASES), "-o", "out", "--resume", "--mix-environments")
    assert told.returncode == 0, told.stderr
    page = (folder / "report.md").read_text()
    assert "The cases ran in 2 environments" in page
    assert "The nodes are 2 hosts of hpcdl testbed" in page
    with h5py.File(folder / "run.h5") as file:
        keys = [case.attrs["environment_key"] for case in file["cases"].values()]
        assert {*keys[:-1]} == {keys[0]} != {keys[-1]}
        assert list(file["environments"]) == [keys[0]]


def test_resuming_without_a_folder_takes_the_newest_unfinished_run(hpcdl, whole):
    for name in ("newest", "whole"):
        folder = hpcdl.folder / "runs" / name
        shutil.copytree(whole, folder, copy_function=shutil.copy)
        if name != "whole":
            (folder / "run.h5").unlink()
            parts(folder)[-1].unlink()
    ended = hpcdl("run", hpcdl.suite(CASES), "--resume", **EMULATED)
    assert ended.returncode == 0, ended.stderr
    assert "resuming the newest unfinished run: runs/newest\nresuming: 4 of 5 cases are finished\n" in ended.stdout
    assert sorted(path.name for path in (hpcdl.folder / "runs").iterdir()) == ["newest", "whole"]
