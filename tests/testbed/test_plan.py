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
from hpcdl.report.run.render import render

RATES = {"200mbit": 25_000_000, "50mbit": 6_250_000, "1gbit": 125_000_000, "200": 25, "-1mbit": 1 << 60}


def trial(command, **_options):
    """tc, for a machine that has none: it knows RATES."""
    rate = command[-1]
    if rate not in RATES:
        return subprocess.CompletedProcess(command, 1, "", f'tbf: illegal value for "rate": "{rate}"\nand more\n')
    return subprocess.CompletedProcess(command, 0, json.dumps([{"options": {"rate": RATES[rate]}}]), "")


@pytest.fixture
def machine(monkeypatch):
    """Linux, root, all programs there; it never comes to a namespace."""
    monkeypatch.setattr(testbed.sys, "platform", "linux")
    monkeypatch.setattr(testbed.os, "geteuid", lambda: 0)
    monkeypatch.setattr(testbed.os, "posix_spawnp", None)
    monkeypatch.setattr(
        testbed.shutil, "which", lambda name, path=None: None if name == "nosuch" else f"/bin/{name}"
    )
    monkeypatch.setattr(testbed.subprocess, "run", trial)
    return monkeypatch


@pytest.fixture
def refused(machine, capsys):
    """refused(arguments): what the command says."""

    def refuse(*arguments):
        assert main(["testbed", *arguments]) == 2
        out, err = capsys.readouterr()
        assert not out
        assert err.startswith("hpcdl: ")
        assert err.count("\n") == 1
        return err.removeprefix("hpcdl: ").rstrip("\n")

    return refuse


def test_every_host_has_the_rate_but_slow_ones(machine):
    planned = testbed.plan(3, "200mbit", ["host2:50mbit"])
    assert planned.bytes_per_second == {"host1": 25_000_000, "host2": 6_250_000, "host3": 25_000_000}
    assert (planned.hosts, planned.rate, planned.slow) == (3, "200mbit", {"host2": "50mbit"})


def test_netem_delays_frames_where_the_kernel_has_it(machine, tmp_path):
    delay = timedelta(milliseconds=30)
    assert (testbed.plan(2, "1gbit").latency, testbed.plan(2, "1gbit").relayed) == (0, False)
    assert (testbed.plan(2, "1gbit", delay=delay).latency, testbed.plan(2, "1gbit", delay=delay).relayed) == (
        0.03,
        True,
    )
    machine.setattr(testbed, "DEVICE", tmp_path / "tun")
    with pytest.raises(testbed.NoTestbed, match="the kernel has neither netem nor "):
        testbed.plan(2, "1gbit", delay=delay)
    machine.setitem(RATES, "tc qdisc add dev lo root netem delay 1ms", 1)
    assert not testbed.plan(2, "1gbit", delay=delay).relayed


def test_what_is_not_understood(refused):
    for hosts, rate, more, said in [
        ("0", "1gbit", [], "--hosts 0: must be from 1 to 64"),
        ("-1", "1gbit", [], "--hosts -1: must be from 1 to 64"),
        ("65", "1gbit", [], "--hosts 65: must be from 1 to 64"),
        (
            "4",
            "fast",
            [],
            "--rate fast: tc does not accept this rate; write for example 200mbit or 1gbit: tbf: illegal ",
        ),
        ("4", "200", [], "--rate 200: must be from 100kbit to 100gbit, but tc reads it as 200 bit/s"),
        ("4", "1gbit", ["--slow", "host1:-1mbit"], "--slow host1:-1mbit: must be from 100kbit to 100gbit"),
        ("4", "1gbit", ["--slow", "host2:slow"], "--slow host2:slow: tc does not accept this rate"),
        (
            "4",
            "1gbit",
            ["--slow", "host5:50mbit"],
            "--slow host5:50mbit: there is no 'host5'; available: host1 to host4",
        ),
        (
            "1",
            "1gbit",
            ["--slow", "host0:50mbit"],
            "--slow host0:50mbit: there is no 'host0'; available: host1 only",
        ),
        ("4", "1gbit", ["--slow", "host2"], "--slow host2: write HOST:RATE, such as host1:50mbit"),
        (
            "1",
            "1gbit",
            ["--trunk", "1gbit"],
            "--trunk 1gbit: one host is on one switch; --hosts must be at least 2",
        ),
        ("4", "1gbit", ["--trunk", "wide"], "--trunk wide: tc does not accept this rate"),
        ("4", "1gbit", ["--latency", "11s"], "--latency: must be at most 10 s, not 11 s"),
        ("4", "1gbit", ["--slow", ":50mbit"], "--slow :50mbit: write HOST:RATE"),
        (
            *("4", "1gbit", ["--slow", "host2:50mbit", "--slow", "host2:1gbit"]),
            "--slow host2:1gbit: host2 already has the rate 50mbit",
        ),
    ]:
        assert refused("--hosts", hosts, "--rate", rate, *more, "--", "true").startswith(said)


def test_not_root(refused, machine):
    machine.setattr(testbed.os, "geteuid", lambda: 1000)
    assert refused("--hosts", "4", "--rate", "1gbit", "--", "true").startswith("testbed: needs root")


@pytest.mark.parametrize("program", ["ip", "tc"])
def test_a_program_is_missing(refused, machine, program):
    machine.setattr(testbed.shutil, "which", lambda name, path=None: None if name == program else name)
    said = refused("--hosts", "4", "--rate", "1gbit", "--", "true")
    assert said == f"testbed: needs the program {program}: apt-get install iproute2"


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["--", "hpcdl", "run", "s.toml"], ["hpcdl", "run", "s.toml"]),
        (
            ["--", "mpirun", "-n", "4", "sh", "-c", "a", "--", "b"],
            ["mpirun", "-n", "4", "sh", "-c", "a", "--", "b"],
        ),
        (["hostname"], ["hostname"]),
    ],
)
def test_the_command_is_taken_as_it_stands(machine, arguments, command):
    given = []
    machine.setattr(testbed, "run_in_testbed", lambda planned, command: given.append(command) or 7)
    assert main(["testbed", "--hosts", "2", "--rate", "1gbit", *arguments]) == 7
    assert given == [command]


def test_the_record_says_that_hosts_are_emulated(machine):
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


def test_a_slow_link_begins_no_new_series():
    """It stands for a defect: hpcdl history must find it, not leave it out as another machine."""
    usual = {"hosts": 2, "rate": "8mbit", "slow": {}, "bytes_per_second": {"host1": 10**6, "host2": 10**6}}
    slow = {**usual, "slow": {"host2": "4mbit"}, "bytes_per_second": {"host1": 10**6, "host2": 5 * 10**5}}
    assert environment_key({"emulated": usual}) == environment_key({"emulated": slow})


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
    told = {"hosts": 4, "rate": "200mbit", "slow": {"host3": "1mbit"}, "bytes_per_second": {}, "latency": 0.03}
    assert "OVERSUBSCRIBED" not in render([hand.read({**machine, "emulated": None})], "md")
    page = render([hand.read({**machine, "mpi": {"nodes": 4}, "emulated": told})], "md")
    assert "OVERSUBSCRIBED: 2 cores per node; 4 ranks want 4." in page
    assert "EMULATED: the nodes are 4 hosts of hpcdl testbed on one machine, links limited to 200mbit, " in page
    assert ", with 30 ms from host to host. They share its cores" in page
    assert "4 (emulated on one machine)" in page
