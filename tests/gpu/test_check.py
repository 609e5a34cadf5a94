"""The program for a borrowed machine, on this one: it says that there is no GPU, and its own logic runs."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from gpu import check, exact_part
from gpu.processor import GXX, Processor

from hpcdl.nn.kernels.cupy.gpu import backend_on, gpu_availability

PROGRAM = Path(__file__).with_name("check.py")


def run(*arguments):
    return subprocess.run([sys.executable, PROGRAM, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.skipif(gpu_availability()[0], reason="there is a GPU")
def test_without_a_gpu_nothing_is_claimed(tmp_path):
    done = run(tmp_path / "results")
    assert done.returncode == 1
    assert done.stdout.startswith("gpu-check: nothing was run: ")
    assert done.stdout.count("\n") == 1
    assert not (tmp_path / "results/results.jsonl").exists()


def test_its_parts_run(tmp_path):
    done = run(tmp_path, "--backend", "numpy", "--tiny")
    assert done.returncode == 0, done.stdout + "".join(
        (tmp_path / f"{part}.txt").read_text()[-2000:] for part in check.PARTS
    )
    lines = check.read(tmp_path)
    assert {line["part"] for line in lines} == {*check.PARTS}
    assert all(line["ok"] is not False for line in lines)
    assert sum(line["ok"] is True for line in lines) > 20
    for part in check.PARTS:
        assert f"\n{part} " in f"\n{done.stdout}"


@pytest.mark.skipif(not GXX, reason="needs g++")
def test_every_precision_is_checked_against_float64(tmp_path, monkeypatch):
    """With the GPU backend's own kernels, on a processor."""
    usual = exact_part.backend
    stand_in = backend_on(Processor())
    monkeypatch.setattr(exact_part, "backend", lambda name, **_: stand_in if name == "cupy" else usual(name))
    results = check.Results(tmp_path, "exact", time.time() + 100)
    exact_part.exact(results, "cupy", tiny=True)
    lines = check.read(tmp_path)
    assert [line["what"] for line in lines if not line["ok"]] == []
    assert {line["what"].rsplit(" ", 1)[1] for line in lines} == {*exact_part.TOLERANCES}


def test_a_budget_is_kept(tmp_path):
    done = run(tmp_path, "--backend", "numpy", "--tiny", "--budget", "5", "--parts", "probes", "exact")
    assert "not run: no time left" in done.stdout
    assert done.returncode == 1, "nothing was checked"


def test_a_part_that_crashes_or_fails_is_seen():
    lines = [{"part": "exact", "what": "3x3", "ok": False}, {"part": "exact", "what": "1x1", "ok": True}]
    text = check.table(lines, {"exact": "12 s", "probes": "ended with -11 after 1 s: Segmentation fault"})
    assert "1 held   1 failed" in text
    assert "FAILED 3x3" in text
    assert "Segmentation" in text
