"""What does not fit is refused, with both numbers, before a kernel refuses it by killing a rank."""

import re
from pathlib import Path
from types import SimpleNamespace

from hpcdl import runner
from hpcdl.launch.memory import node_memory_bytes, shortage


def test_a_node_has_no_more_than_its_physical_memory():
    text = Path("/proc/meminfo").read_text(encoding="ascii")
    physical = 1024 * int(re.search(r"MemTotal:\s+(\d+)", text)[1])
    assert 0 < node_memory_bytes() <= physical


def test_what_fits_just_fits():
    assert shortage(25, 4, 100) is None
    assert shortage(2 * 10**9, 3, 10**9) == "needs at least 3 ranks x 2.00 GB of memory, and there are 1.00 GB"
    assert shortage(2 * 10**9, 1, 10**9) == "needs at least 2.00 GB of memory, and there are 1.00 GB"


def suite_of(processes, needed):
    module = SimpleNamespace(memory_bytes=lambda _settings: needed)
    return SimpleNamespace(cases=[SimpleNamespace(name="greedy", processes=processes, settings={}, module=module)])


def test_the_fullest_node_decides(monkeypatch):
    """Three ranks on one node and one on another: three times the need must fit."""
    monkeypatch.setattr(runner, "node_memory_bytes", lambda: 10**9)
    ranks = [{"slurm_node": "unknown", "hostname": host} for host in "aaab"]
    assert runner._lack_of_memory(suite_of(4, 333_000_000), ranks) is None
    assert runner._lack_of_memory(suite_of(4, 340_000_000), ranks) == (
        "case 'greedy': needs at least 3 ranks x 0.34 GB of memory, and there are 1.00 GB on a node"
    )
    assert runner._lack_of_memory(suite_of(2, 340_000_000), ranks) is None
