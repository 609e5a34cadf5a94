"""Cases that exceed the memory of a node are refused before they start; the message has both sizes."""

import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from hpcdl import suite as memory
from hpcdl.cases.keys import checks
from hpcdl.cli import main
from hpcdl.launch.machine import cpu, node_memory_bytes, shortage
from hpcdl.suite import lack_of_memory

VERSION_1 = {"memory.limit_in_bytes": "4096", "cpu.cfs_quota_us": "150000", "cpu.cfs_period_us": "100000"}
VERSION_2 = {"memory.max": "4096", "cpu.max": "150000 100000"}


@pytest.mark.parametrize(
    ("own", "folder", "files"),
    [
        ("0::/", "", VERSION_2),
        ("0::/job/step", "job", VERSION_2),
        ("5:memory:/job\n4:cpu,cpuacct:/job\n0::/", "{}/job", VERSION_1),
        ("5:memory:/docker/7\n4:cpu,cpuacct:/docker/7", "{}", VERSION_1),
    ],
    ids=["top", "parent", "version 1", "version 1 in a container"],
)
def test_node_memory_is_at_most_the_physical_memory_and_that_of_control_groups(tmp_path, own, folder, files):
    text = Path("/proc/meminfo").read_text(encoding="ascii")
    physical = 1024 * int(re.search(r"MemTotal:\s+(\d+)", text)[1])
    assert 0 < node_memory_bytes() <= physical
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(own)
    for name, limit in files.items():
        file = tmp_path / "sys/fs/cgroup" / folder.format(name.partition(".")[0]) / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(limit)
    assert node_memory_bytes(tmp_path) == 4096
    assert cpu(tmp_path)["quota_cores"] == 1.5


def test_shortage_begins_above_the_available_memory():
    assert shortage(25, 4, 100) is None
    for ranks, needed in ((3, "3 ranks x 2.00 GB"), (1, "2.00 GB")):
        says = f"needs at least {needed} of memory, but only 1.00 GB are available"
        assert shortage(2 * 10**9, ranks, 10**9) == says


def test_the_fullest_node_decides(monkeypatch):
    """With three ranks on one node and one on another, three times a rank's memory must fit."""
    monkeypatch.setattr(memory, "node_memory_bytes", lambda: 10**9)
    told = "case 'large': needs at least 3 ranks x 0.34 GB of memory, but only 1.00 GB are available on a node"
    for processes, needed, lack in ((4, 333_000_000, None), (4, 340_000_000, told), (2, 340_000_000, None)):
        module = SimpleNamespace(memory_bytes=lambda _spec, needed=needed: needed)
        large = SimpleNamespace(name="large", processes=processes, spec=None, module=module)
        assert lack_of_memory([large], "aaab") == lack


SUITE = """
[suite]
name = "s"
[[case]]
kind = "collective"
aggregation = "ring"
ranks = 4
message_bytes = 100_000_000
"""


@pytest.mark.parametrize(("variables", "code"), [({}, 2), ({"SLURM_JOB_ID": "1"}, 0)])
def test_a_dry_run_checks_the_memory_of_all_ranks_on_this_node(tmp_path, monkeypatch, capsys, variables, code):
    """A rank has the vector, and random numbers in float64 and in float32."""
    monkeypatch.setattr(checks, "node_memory_bytes", lambda: 400_000_001)
    monkeypatch.setattr(memory, "node_memory_bytes", lambda: 4 * 400_000_000 - 1)
    monkeypatch.setattr(os, "environ", {**variables})
    file = tmp_path / "s.toml"
    file.write_text(SUITE)
    assert main(["run", str(file), "--dry-run"]) == code
    shown = capsys.readouterr()
    assert "1 case, 4 ranks" in shown.out
    assert ("4 ranks x 0.40 GB of memory" in shown.err) == bool(code)
    monkeypatch.setattr(memory, "node_memory_bytes", lambda: 4 * 400_000_001)
    assert main(["run", str(file), "--dry-run"]) == 0
