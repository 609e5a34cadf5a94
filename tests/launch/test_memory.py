"""What does not fit is refused, with both numbers, before a kernel refuses it by killing a rank."""

import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from hpcdl.cases import collective
from hpcdl.cli import main
from hpcdl.launch import memory
from hpcdl.launch.memory import lack_of_memory, node_memory_bytes, shortage


def test_a_node_has_no_more_than_its_physical_memory():
    text = Path("/proc/meminfo").read_text(encoding="ascii")
    physical = 1024 * int(re.search(r"MemTotal:\s+(\d+)", text)[1])
    assert 0 < node_memory_bytes() <= physical


def test_what_fits_just_fits():
    assert shortage(25, 4, 100) is None
    assert shortage(2 * 10**9, 3, 10**9) == "needs at least 3 ranks x 2.00 GB of memory, and there are 1.00 GB"
    assert shortage(2 * 10**9, 1, 10**9) == "needs at least 2.00 GB of memory, and there are 1.00 GB"


def greedy(processes, needed):
    module = SimpleNamespace(memory_bytes=lambda _settings: needed)
    return [SimpleNamespace(name="greedy", processes=processes, settings={}, module=module)]


def test_the_fullest_node_decides(monkeypatch):
    """Three ranks on one node and one on another: three times the need must fit."""
    monkeypatch.setattr(memory, "node_memory_bytes", lambda: 10**9)
    assert lack_of_memory(greedy(4, 333_000_000), "aaab") is None
    assert lack_of_memory(greedy(4, 340_000_000), "aaab") == (
        "case 'greedy': needs at least 3 ranks x 0.34 GB of memory, and there are 1.00 GB on a node"
    )
    assert lack_of_memory(greedy(2, 340_000_000), "aaab") is None


SUITE = """
[suite]
name = "s"
[[case]]
kind = "collective"
aggregation = "ring"
ranks = 4
message_bytes = 100_000_000
"""


@pytest.mark.parametrize(("lent", "code"), [({}, 2), ({"SLURM_JOB_ID": "1"}, 0)])
def test_a_dry_run_looks_at_all_ranks_that_would_be_here(tmp_path, monkeypatch, capsys, lent, code):
    """The vector, as many random numbers in float64, and a quarter of the vector in each rank's inbox."""
    monkeypatch.setattr(collective, "node_memory_bytes", lambda: 425_000_001)
    monkeypatch.setattr(memory, "node_memory_bytes", lambda: 4 * 425_000_000 - 1)
    monkeypatch.setattr(os, "environ", {**lent})
    file = tmp_path / "s.toml"
    file.write_text(SUITE)
    assert main(["run", str(file), "--dry-run"]) == code
    shown = capsys.readouterr()
    assert "1 case, 4 ranks" in shown.out
    assert ("4 ranks x 0.42 GB of memory" in shown.err) == bool(code)
    monkeypatch.setattr(memory, "node_memory_bytes", lambda: 4 * 425_000_001)
    assert main(["run", str(file), "--dry-run"]) == 0
