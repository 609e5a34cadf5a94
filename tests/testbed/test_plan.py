"""What can be asked of a testbed, and what is said of what cannot: one line, exit code 2, nothing made."""

import json
import subprocess
import sys
from datetime import timedelta

import pytest

from hpcdl.cli import main
from hpcdl.launch import testbed
from hpcdl.launch.environment import describe_job, environment_key
from hpcdl.launch.mpirun import python_command
from hpcdl.launch.testbed import TESTBED, emulated, launcher_settings
from hpcdl.report.render import render


def no_netem(command, **_options):
    """unshare and tc, of a kernel without netem."""
    code = int("netem" in command)
    return subprocess.CompletedProcess(command, code, "", "Error: Specified qdisc kind is unknown.")


@pytest.fixture
def machine(monkeypatch):
    """Linux, root, all programs there; it never comes to a namespace."""
    monkeypatch.setattr(testbed.sys, "platform", "linux")
    monkeypatch.setattr(testbed.os, "geteuid", lambda: 0)
    monkeypatch.setattr(testbed.os, "posix_spawnp", None)
    monkeypatch.setattr(testbed.shutil, "which", lambda name, **_: None if name == "nosuch" else f"/bin/{name}")
    monkeypatch.setattr(testbed.subprocess, "run", no_netem)
    return monkeypatch


def test_every_host_has_the_rate_but_slow_ones(machine):
    planned = testbed.plan(3, "0.2 Gbit/s", ["host2:50Mbit"], "1000mbit")
    assert planned.bytes_per_second == {"host1": 25_000_000, "host2": 6_250_000, "host3": 25_000_000}
    assert (planned.hosts, planned.rate, planned.slow) == (3, "200mbit", {"host2": "50mbit"})
    assert (planned.trunk, planned.trunk_bytes_per_second) == ("1gbit", 125_000_000)


def test_netem_delays_frames_where_the_kernel_has_it(machine, tmp_path):
    def delay(milliseconds):
        planned = testbed.plan(2, "1gbit", delay=timedelta(milliseconds=milliseconds))
        return planned.latency, planned.relayed

    assert delay(0) == (0, False)
    assert delay(30) == (0.03, True)
    machine.setattr(testbed, "DEVICE", tmp_path / "tun")
    with pytest.raises(testbed.LaunchError, match="the kernel has neither netem nor "):
        delay(30)
    machine.setattr(testbed.subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 0))
    assert delay(30) == (0.03, False)


def test_machines_that_cannot_have_a_testbed(machine, refused):
    failed = subprocess.CompletedProcess([], 1, "", "unshare: unshare failed: Operation not permitted\nmore")
    limited = "a link with a limited rate cannot be created here: unshare: "
    for module, function, other, message in [
        (testbed.os, "geteuid", lambda: 1000, "needs root"),
        (testbed.shutil, "which", lambda name: name if name == "ip" else None, "needs the program tc: apt-get "),
        (testbed.subprocess, "run", lambda *_, **__: failed, limited),
    ]:
        with machine.context() as patch:
            patch.setattr(module, function, other)
            told = refused("testbed", "--hosts", "4", "--rate", "1gbit", "--", "true")
            assert told.startswith(f"hpcdl: testbed: {message}")


def test_the_command_is_taken_as_it_stands(machine):
    given = []
    machine.setattr(testbed, "run_in_testbed", lambda planned, command: given.append(command) or 7)
    for arguments in ("-- hpcdl run s.toml", "-- mpirun -n 4 sh -c a -- b", "hostname"):
        assert main(["testbed", "--hosts", "2", "--rate", "1gbit", *arguments.split()]) == 7
        assert given.pop() == arguments.removeprefix("-- ").split()


def test_the_record_says_that_hosts_are_emulated_and_a_slow_link_begins_no_new_series(machine):
    real = describe_job({"library": "MPICH"})
    assert real["emulated"] is None
    told = {"hosts": 1, "rate": "200mbit", "slow": {}, "bytes_per_second": {"host1": 25_000_000}}
    machine.setenv(TESTBED, json.dumps(told))
    assert emulated() == told
    assert describe_job({"library": "MPICH"})["emulated"] == told
    same = {**real, "emulated": told}
    slower = {**real, "emulated": {**told, "rate": "1mbit", "bytes_per_second": {"host1": 125_000}}}
    joined = {**real, "emulated": {**told, "trunk": "1mbit", "trunk_bytes_per_second": 125_000}}
    distant = {**real, "emulated": {**told, "latency": 0.03, "relayed": True}}
    assert len({environment_key(env) for env in (real, same, slower, joined, distant)}) == 5
    # a slow link stands for a defect: hpcdl history must find it, not leave it out as another machine
    slow = {**told, "slow": {"host1": "8mbit"}, "bytes_per_second": {"host1": 10**6}}
    assert environment_key({**real, "emulated": slow}) == environment_key(same)


def test_no_flag_overrules_the_settings_of_a_testbed(monkeypatch, tmp_path):
    launcher = tmp_path / "mpirun"
    launcher.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 5.0.11'\n")
    launcher.chmod(0o755)
    monkeypatch.setattr("hpcdl.launch.mpirun.mpirun", lambda: launcher)
    monkeypatch.setenv(TESTBED, json.dumps({"hosts": 1, "rate": "1mbit", "slow": {}, "bytes_per_second": {}}))
    assert python_command(8, ["x"]) == [str(launcher), "-n", "8", sys.executable, "-P", "x"]


def test_messages_have_no_way_but_the_link(tmp_path):
    told = launcher_settings(tmp_path / "ssh", tmp_path / "one", tmp_path / "two")
    assert (told["UCX_TLS"], told["OMPI_MCA_btl"]) == ("tcp,self", "tcp,self")
    assert {told["UCX_NET_DEVICES"], told["OMPI_MCA_btl_tcp_if_include"], told["HYDRA_IFACE"]} == {"eth0"}


def test_the_report_counts_the_cores_of_one_machine(hand):
    """Four emulated hosts with two cores each are two cores."""
    hand.train([[1.0] * 9] * 4, ranks=4, nodes=4, warmup_steps=0)
    machine = {"cpu": {"physical_cores": 2}}
    rates = {"host1": 10**8, "host2": 10**8, "host3": 125_000, "host4": 10**8}
    told = {"hosts": 4, "rate": "100mbps", "slow": {"host3": "1mbit"}, "bytes_per_second": rates, "latency": 0.03}
    assert "measure scaling" not in render([hand.read({**machine, "emulated": None})], "md")
    page = render([hand.read({**machine, "mpi": {"nodes": 4}, "emulated": told})], "md")
    assert "A node has 2 cores, and 4 ranks need 4: these cases do not measure scaling." in page
    assert "The nodes are 4 hosts of hpcdl testbed, with links limited to 800 Mbit/s, " in page
    assert "host3 to 1 Mbit/s, with 30 ms" in page
    assert " from host to host. These hosts share the cores" in page
    assert "4 (emulated on one machine)" in page
