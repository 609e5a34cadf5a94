"""Programs that print figures of documents and reports run at their smallest size, and use names that exist."""

import importlib
import inspect
import random
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from commands.test_history import Archive
from conftest import Hand, ended

from hpcdl.cli import main
from hpcdl.fabric.pairs import rounds

ROOT = Path(__file__).parents[1]
PROGRAMS = [
    str(path.relative_to(ROOT))
    for folder in ("tests", "reports")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if re.search(r'^if __name__ == "__main__"', path.read_text(encoding="utf-8"), re.MULTILINE)
]
SMALLEST = (
    ("tests/planted_defects.py", "--list"),
    ("tests/analysis/history_figures.py", "1", "20", "two states", "normal"),
    ("tests/analysis/comparison_figures.py", "1", "2,3"),
    ("tests/analysis/comparison_figures.py", "decide", "1"),
)
NAMES = re.compile(r"\[(attr-defined|name-defined|call-arg)\]$|\bhpcdl\b.*\[import-not-found\]$")
"""Errors of mypy about names, modules of the package and arguments that are not there."""


@pytest.mark.slow
@pytest.mark.parametrize("command", SMALLEST, ids=" ".join)
def test_a_program_runs_at_its_smallest_size(command):
    done = ended([sys.executable, *command], ROOT, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) >= 10


@pytest.mark.slow
def test_programs_use_names_that_exist(tmp_path):
    """Those that need root, PyTorch, a GPU or the checkouts of others, too."""
    assert len(PROGRAMS) > 15
    folders = ":".join(str(ROOT / "tests" / name) for name in ("", "peers", "testbed", "models"))
    options = ["--config-file=", "--check-untyped-defs", "--follow-imports=silent", "--explicit-package-bases"]
    command = [sys.executable, "-m", "mypy", *options, f"--cache-dir={tmp_path}", *PROGRAMS]
    checked = ended(command, ROOT, MYPYPATH=folders)
    assert checked.stdout.splitlines()[-1].startswith("Found "), checked.stdout + checked.stderr
    assert [line for line in checked.stdout.splitlines() if NAMES.search(line)] == []


@pytest.fixture
def program(monkeypatch, capsys, tmp_path):
    """program(path, *words): the module of a program whose commands of hpcdl run in this process, without a testbed."""
    for folder in ("tests/testbed", "reports/oracles"):
        monkeypatch.syspath_prepend(ROOT / folder)

    def hpcdl(*words):
        assert words[0] != "testbed", "no hosts are emulated"
        capsys.readouterr()
        code = main([*map(str, words)])
        return code, capsys.readouterr().out

    def load(path, *words):
        module = importlib.import_module(Path(path).stem)
        shims = {"hpcdl": hpcdl, "command": lambda *words: hpcdl(*words)[1]}
        for name in [name for name in shims if inspect.isfunction(getattr(module, name, None))]:
            monkeypatch.setattr(module, name, shims[name])
        monkeypatch.setattr(sys, "argv", [path, *map(str, words)])
        return module

    return load


def test_slow_hosts_and_links_of_recorded_runs_are_found_by_the_sentences_on_them(program, tmp_path, capsys):
    culprits = program("tests/testbed/culprits.py", "live", tmp_path, "--runs", "1", "--hosts", "4", "--seed", "1")
    draw, table = random.Random(1), rounds(4, "all_pairs")
    shared = {"aggregation": "fabric", "message_bytes": 1 << 20, "warmup_steps": 0}
    for defect, options in culprits.DEFECTS.items():
        slow = draw.randint(1, 4) - 1
        node, link = (1.25 if option in options else 1.0 for option in ("--slow-cpu", "--slow"))
        hand = Hand(tmp_path / f"{defect}-4-00")
        hand.case(
            [[20.0 * (node if rank == slow else 1)] * 5 for rank in range(4)],
            **{**shared, "kind": "node", "case": "node", "collective": "triad", "pattern": "alone"},
        )
        hand.case(
            [[link if slow in (rank, of[rank]) else 1.0 for of in table for _ in range(4)] for rank in range(4)],
            **{**shared, "kind": "pairwise", "case": "pairs", "pattern": "all_pairs"},
        )
        ranks = [{"hostname": f"host{rank + 1}"} for rank in range(4)]
        hand.read({"ranks": ranks, "date": "2026-01-01T00:00:00+00:00"}, '[suite]\nname = "s"\nanswer = "links"\n')
    culprits.main()
    found = [line.split(",")[1] for line in capsys.readouterr().out.splitlines()]
    assert found == [f" {defect}: 1 of 1 right" for defect in culprits.DEFECTS]
    program("tests/testbed/culprits.py", "quiet", tmp_path).main()
    assert capsys.readouterr().out == "100 nights drawn from 1: named [], changes []\n"


def test_the_slow_nights_of_an_archive_are_found(program, tmp_path, monkeypatch, capsys):
    nights = program("tests/testbed/nights.py", tmp_path / "nightly")
    archive, hpcdl = Archive(tmp_path), nights.hpcdl
    archive.runs = 1

    def recorded(*words):
        if words[0] != "testbed":
            return hpcdl(*words)
        archive.run(hosts=("host1", "host2", "host3", "host4"), slow=("host3",) if "--slow" in words else ())
        return 0, ""

    monkeypatch.setattr(nights, "hpcdl", recorded)
    with pytest.raises(SystemExit) as ended:
        nights.main()
    assert ended.value.code == 0


def test_methods_are_compared_on_archives_without_the_peer(program, monkeypatch, capsys):
    """Otava, which need not be installed, finds nothing here."""
    peer = SimpleNamespace(compute_change_points=lambda *_, **__: ([], None))
    monkeypatch.setitem(sys.modules, "otava", SimpleNamespace(analysis=peer))
    monkeypatch.setitem(sys.modules, "otava.analysis", peer)
    oracle = program("reports/oracles/change_points.py")
    steps = np.where(np.arange(60) < 30, 1, 1.5)[:, None]
    times = np.exp(0.01 * np.random.default_rng(0).standard_t(2, (60, 20))) * steps
    runs = [(run, dict(enumerate(row))) for run, row in enumerate(times.tolist())]
    monkeypatch.setattr(oracle, "ARCHIVES", {"data": ("Steps", lambda _: runs), "other": ("Other", None)})
    with np.errstate(invalid="ignore"):  # no method has a false alarm
        oracle.main({"data": "checkout"})
    *_, answer = capsys.readouterr().out.splitlines()
    assert answer.startswith("hpcdl finds 100 % of the steps, Otava 0 % and a rolling median 100 %, with ")
