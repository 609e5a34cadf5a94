import copy
import json
import subprocess

import pytest

from hpcdl.launch.environment import _git, describe_job, describe_rank, environment_key
from hpcdl.launch.machine import driver_statistics, held_back_ns, link_counters, network

CPU = "sys/devices/system/cpu"
CARD = "sys/class/net/eth7"
PORT = "sys/class/infiniband/mlx5_0/ports/1"
LINE = "7f00-7f01 r-xp 0 00:00 1   "
MPICH = "/opt/lib/libmpi.so.12"
UCT = "/opt/lib/libuct_ib.so.0"
MACHINE = {
    "proc/cpuinfo": "".join(f"processor\t: {i}\nmodel name\t: Fast CPU @ 3 GHz\n\n" for i in range(4)),
    "proc/meminfo": "MemTotal:        1048576 kB\nMemFree: 12 kB\n",
    "proc/sys/kernel/osrelease": "6.1.0-13-amd64\n",
    "proc/self/maps": "".join(f"{LINE}{name}\n" for name in (MPICH, UCT, MPICH, "[stack]")),
    "proc/net/snmp": "Tcp: ActiveOpens RetransSegs\nTcp: 7 3\n",
    **{f"{CPU}/cpu{i}/topology/thread_siblings_list": f"{i % 2},{i % 2 + 2}\n" for i in range(4)},
    f"{CPU}/smt/active": "1\n",
    f"{CPU}/cpu0/cpufreq/scaling_governor": "performance\n",
    "sys/fs/cgroup/cpu.max": "150000 100000\n",
    f"{CARD}/speed": "25000\n",
    f"{CARD}/operstate": "up\n",
    f"{CARD}/statistics/rx_bytes": "12345\n",
    f"{PORT}/rate": "200 Gb/sec (4X HDR)\n",
    f"{PORT}/state": "4: ACTIVE\n",
    f"{PORT}/counters/port_xmit_wait": "5\n",
    f"{PORT}/hw_counters/np_cnp_sent": "3\n",
    f"{PORT}/hw_counters/lifespan": "9\n",
    "sys/class/cxi/cxi0/device/telemetry/hni_rx_paused_0": "17@1700000000.123456789\n",
    "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat\n",
    "proc/driver/nvidia/gpus/0000:01:00.0/information": "Model: \t\t NVIDIA X100\nIRQ: 5\n",
}
"""Two cores with two threads each, one Ethernet card, one InfiniBand port, one GPU."""


@pytest.fixture
def machine(tmp_path, put, driver):
    for path, text in MACHINE.items():
        put(path, text)
    driver("eth7", "mlx5_core")
    return tmp_path


MPI = {"library": "MPICH", "version": "5.0.2", "nodes": 2}


@pytest.mark.parametrize(
    ("group", "stat"),
    [
        ("0::/job", ("sys/fs/cgroup/job/cpu.stat", "usage_usec 9\nnr_throttled 7\nthrottled_usec 2000\n")),
        ("4:cpu,cpuacct:/job", ("sys/fs/cgroup/cpu/job/cpu.stat", "nr_periods 9\nthrottled_time 2000000\n")),
        ("0::/", ("sys/fs/cgroup/none", "")),
    ],
)
def test_waiting_for_a_core_and_the_groups_own_limit(tmp_path, put, group, stat):
    put("proc/thread-self/schedstat", "123456 5000000 17\n")
    put("proc/self/cgroup", f"{group}\n")
    put(*stat)
    assert held_back_ns(tmp_path) == (5_000_000, 2_000_000 if stat[1] else 0)
    assert held_back_ns(tmp_path / "other") == (0, 0)


def test_reads_the_machine(machine):
    found = describe_job(MPI, machine)
    expected = {"physical_cores": 2, "smt": "on", "governor": "performance", "quota_cores": 1.5}
    assert found["cpu"] == {"model": "Fast CPU @ 3 GHz", **expected}
    assert found["memory_bytes"] == 2**30
    assert found["kernel"] == "6.1.0-13-amd64"
    assert found["libraries"]["mpi"] == [MPICH]
    assert found["libraries"]["ucx"] == [UCT]
    assert found["network"]["eth7"] == {"driver": "mlx5_core", "rate": "25000 Mbit/s", "state": "up"}
    assert found["infiniband"]["mlx5_0/1"]["rate"] == "200 Gb/sec (4X HDR)"
    assert found["gpu"] == {"driver": "535.104.05", "devices": [{"name": "NVIDIA X100"}]}
    assert found["mpi"] == MPI
    assert found["key"] == environment_key(found)
    json.dumps(found)


def test_a_driver_that_knows_no_rate_has_none(machine, put):
    for speed in ("-1", "0", "65535", "4294967295", ""):
        put(f"{CARD}/speed", f"{speed}\n")
        assert network(machine)["eth7"]["rate"] == "unknown"


def test_reads_counters_of_links(machine, tmp_path):
    driver = {"rx_prio3_pause": 8, "rx3_bytes": 1, "rx_bytes": 1}
    assert link_counters(machine, {"eth7": driver}.__getitem__) == {
        "eth7": {"rx_prio3_pause": 8, "rx_bytes": 12345},
        "mlx5_0/1": {"port_xmit_wait": 5, "np_cnp_sent": 3},
        "cxi0": {"hni_rx_paused_0": 17},
        "tcp": {"RetransSegs": 3},
    }
    assert link_counters(tmp_path / "bare") == {"tcp": {}}
    assert driver_statistics("lo") == driver_statistics("no such interface") == {}


def test_unknown_values_are_not_omitted(tmp_path, machine):
    bare = describe_job({}, tmp_path / "bare")
    assert bare.keys() == describe_job(MPI, machine).keys()
    for name in ("mpi", "libraries", "memory_bytes", "kernel", "network", "infiniband", "gpu", "clocksource"):
        assert bare[name] == "unknown", name
    assert {*bare["cpu"].values()} == {"unknown"}
    assert len(bare["key"]) == 12


def test_variables_and_secrets(monkeypatch):
    monkeypatch.setenv("UCX_TLS", "tcp,self")
    monkeypatch.setenv("SLURM_JWT", "do-not-tell")
    monkeypatch.setenv("HOME_SWEET", "home")
    found = describe_job(MPI)
    assert found["variables"]["UCX_TLS"] == "tcp,self"
    assert found["variables"]["SLURM_JWT"] == "(hidden)"
    assert "HOME_SWEET" not in found["variables"]
    assert "do-not-tell" not in json.dumps(found)


def test_changed_files_are_those_of_the_package(tmp_path, put):
    """Not the reports beside it, which a measurement writes."""
    for path in ("hpcdl/launch/environment.py", "hpcdl/suite.py", "reports/data.json"):
        put(path, "")
    name = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    for command in (["init", "-q"], ["add", "."], [*name, "commit", "-qm", "all"]):
        subprocess.run(["git", "-C", tmp_path, *command], check=True)
    for path, changed in (("reports/data.json", 0), ("hpcdl/suite.py", 1)):
        put(path, "changed")
        assert _git(tmp_path / "hpcdl/launch")["changed_files"] == changed
    subprocess.run(["git", "-C", tmp_path, "checkout", "-qb", b"caf\xe9"], check=True)
    assert _git(tmp_path / "hpcdl/launch")["branch"] == "caf\ufffd"


CHANGES = [
    lambda env: env["cpu"].update(model="Other CPU"),
    lambda env: env["mpi"].update(version="5.0.3"),
    lambda env: env["mpi"].update(library="Open MPI"),
    lambda env: env["mpi"].update(nodes=3),
    lambda env: env["libraries"].update(ucx=[]),
    lambda env: env["network"]["eth7"].update(rate="10000 Mbit/s"),
    lambda env: env["gpu"].update(driver="536"),
    lambda env: env["gpu"]["devices"].append({"name": "NVIDIA X100"}),
    lambda env: env["software"].update(numpy="9.9"),
    lambda env: env.update(kernel="6.2.0"),
    lambda env: env.update(gpu="unknown"),
]


def test_key_changes_with_the_machine_and_ignores_temporary_differences(machine):
    one = describe_job(MPI, machine)
    for number, change in enumerate(CHANGES):
        other = copy.deepcopy(one)
        change(other)
        assert environment_key(other) != environment_key(one), number
    other = copy.deepcopy(one)
    other |= {"date": "2001-01-01", "hostname": "elsewhere", "command": ["x"], "git": {"commit": "abc"}}
    other |= {"kernel": "6.1.0-14-amd64", "variables": {"SLURM_JOB_ID": "17"}, "link_counters": {}}
    other["cpu"]["governor"] = "powersave"
    other["network"] = {"enp3s0": one["network"]["eth7"], "lo": {"driver": "unknown", "rate": "unknown"}}
    other["libraries"]["mpi"] = ["/home/somebody/libmpi.so.12"]
    other["libraries"]["ucx"] = ["/home/somebody/libuct_ib.so.0"]
    other["ranks"] = [{"pid": 5}]
    assert environment_key(other) == environment_key(one)


def test_local(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("SLURMD_NODENAME", "n7")
    found = describe_rank()
    assert (found["threads"], found["slurm_node"]) == (3, "n7")
    monkeypatch.delenv("SLURMD_NODENAME")
    assert describe_rank()["slurm_node"] == "unknown"
