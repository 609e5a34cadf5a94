"""The real thing: hosts with names, links with rates, ranks on hosts, and nothing left of any of it."""

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest
from suite.conftest import CASES, text_of

import hpcdl
from hpcdl.launch.testbed import cpu_controller

LIMIT = 120

"""Seconds that a command may take; it takes a few, on a loaded machine many."""

TRANSFERS = """
import json, subprocess, sys

RECEIVE = '''
import socket, time
server = socket.create_server(("", 5000))
print("listening", flush=True)
link, _ = server.accept()
count = len(link.recv(65536))
began = time.perf_counter()
while data := link.recv(65536):
    count += len(data)
print(count / (time.perf_counter() - began))
'''
SEND = '''
import socket, sys
link = socket.create_connection((sys.argv[1], 5000))
link.sendall(bytes(int(sys.argv[2])))
'''

found = {}
for source, sink, count in (("host1", "host2", 6_000_000), ("host1", "host3", 1_500_000), ("host3", "host1", 1_500_000)):
    receiver = subprocess.Popen(["ssh", sink, f"python -c '{RECEIVE}'"], stdout=subprocess.PIPE, text=True)
    receiver.stdout.readline()
    subprocess.run(["ssh", source, f"python -c '{SEND}' {sink} {count}"], check=True)
    found[f"{source} {sink}"] = float(receiver.communicate()[0])
print(json.dumps(found))
"""

COLLECTIVE = {**CASES["collective"], "aggregation": ["ring", "native"], "ranks": 4, "message_bytes": 40000}
COLLECTIVE |= {"repetitions": 6, "warmup": 1}

WAIT = "sleep 1000 & ssh host2 sleep 1000 & cp /dev/shm/groups/host2 group; touch ready; wait"


def wait_for(place, run):
    deadline = time.monotonic() + LIMIT
    while not place.exists():
        assert run.poll() is None, run.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_hosts_have_names_links_and_a_way_to_each_other(testbed):
    (testbed.folder / "where.py").write_text("import socket; print(socket.gethostbyname('host3'))")
    seen = "for h in host1 host2 host3; do ssh $h 'hostname; pwd; echo /sys/class/net/*'; done"
    ended = testbed("sh", "-c", f"{seen}; ssh host2 python where.py", hosts=3)
    assert (ended.returncode, ended.stderr) == (0, "")
    cards = "/sys/class/net/eth0 /sys/class/net/lo"
    expected = [line for host in ("host1", "host2", "host3") for line in (host, str(testbed.folder), cards)]
    assert ended.stdout.splitlines() == [*expected, "10.77.0.3"]
    testbed.check_nothing_left()


def test_hosts_have_cores_of_their_own_if_there_are_enough(testbed):
    """A host that computes must not use the core of another one."""
    every = sorted(os.sched_getaffinity(0))
    (testbed.folder / "cores.py").write_text("import os; print(*sorted(os.sched_getaffinity(0)))")
    for hosts in (len(every), len(every) + 1):
        asked = "; ".join(f"ssh host{number + 1} python cores.py" for number in range(hosts))
        ended = testbed("sh", "-c", asked, hosts=hosts)
        assert (ended.returncode, ended.stderr) == (0, "")
        cores = [[*map(int, line.split())] for line in ended.stdout.splitlines()]
        assert cores == ([[core] for core in every] if hosts == len(every) else [every] * hosts)
    testbed.check_nothing_left()


@pytest.mark.parametrize("rate", ["1mbit", "10gbit"])
def test_the_limit_lets_whole_packets_pass(testbed, rate):
    """Or the kernel cuts each into frames, and the machine's cores are the limit."""
    known = "cat /proc/sys/net/ipv4/tcp_congestion_control; tc -j qdisc show dev eth0; ip -j -d link show eth0"
    ended = testbed("ssh", "host1", known, hosts=1, rate=rate)
    assert (ended.returncode, ended.stderr) == (0, "")
    congestion, limit, card = ended.stdout.splitlines()
    assert congestion == "reno"
    assert 1500 < json.loads(card)[0]["gso_max_size"] < json.loads(limit)[0]["options"]["burst"]


def test_a_trunk_joins_two_switches(testbed):
    (testbed.folder / "transfers.py").write_text(TRANSFERS)
    ended = testbed("python", "transfers.py", hosts=4, rate="80mbit", trunk="20mbit")
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["host1 host2"] == pytest.approx(10_000_000, rel=0.15)
    assert [found["host1 host3"], found["host3 host1"]] == pytest.approx([2_500_000] * 2, rel=0.15)


ROUND_TRIP = """
import socket, subprocess, time
wait = "import socket; s = socket.create_server(('', 5000)); print(flush=True); c, _ = s.accept(); c.sendall(c.recv(1))"
server = subprocess.Popen(["ssh", "host2", f'python -c "{wait}"'], stdout=subprocess.PIPE)
server.stdout.readline()
ask = "import socket, time; c = socket.create_connection(('host2', 5000)); b = time.perf_counter(); c.sendall(b'x'); c.recv(1)"
subprocess.run(["ssh", "host1", f'python -c "{ask}; print(time.perf_counter() - b)"'], check=True)
"""


def test_latency_is_that_from_host_to_host(testbed):
    (testbed.folder / "round_trip.py").write_text(ROUND_TRIP)
    ended = testbed("python", "round_trip.py", latency="20ms")
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.startswith("hpcdl: testbed: 20 ms from host to host, by ")
    assert float(ended.stdout) >= 2 * 0.02
    testbed.check_nothing_left()


@pytest.mark.parametrize(("command", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -KILL $$", 137)])
def test_the_exit_code_is_the_commands(testbed, command, code):
    ended = testbed("sh", "-c", f"sleep 1000 >/dev/null 2>&1 & {command}", hosts=1)
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, "", "")
    testbed.check_nothing_left()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, -15), (signal.SIGKILL, -9)])
def test_nothing_is_left_when_it_is_killed(testbed, number, code):
    """Only the process that was started is told; not its children."""
    limits = ["host2:0.5"] * (cpu_controller() is not None)
    run = testbed.start("bash", "-c", WAIT, slow_cpu=limits)
    wait_for(testbed.folder / "ready", run)
    assert len(testbed.processes()) > 5
    run.send_signal(number)
    run.communicate(timeout=LIMIT)
    assert run.returncode == code
    testbed.check_nothing_left()
    assert not limits or not Path((testbed.folder / "group").read_text()).exists()


def test_killed_while_it_is_being_built(testbed):
    for delay in (0.0, 0.3, 0.5):
        run = testbed.start("sleep", "1000", hosts=16)
        time.sleep(delay)
        run.kill()
        run.communicate()
        testbed.check_nothing_left()


WHERE = """
import socket
from mpi4py import MPI
hosts = MPI.COMM_WORLD.gather(socket.gethostname())
print(*sorted(hosts)) if hosts else 0
"""


def test_ranks_of_mpirun_go_round_the_hosts_and_check_names_the_transport_between_them(library):
    _, testbed = library
    (testbed.folder / "where.py").write_text(WHERE)
    ended = testbed("sh", "-c", "mpirun -n 5 python where.py && mpirun -n 3 hpcdl check", hosts=3)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[0] == "host1 host1 host2 host2 host3"
    assert "3 ranks on 3 hosts; a sum over them is right" in ended.stdout
    assert "transport between hosts: tcp; no faster fabric is up" in ended.stdout
    assert "disk: host1, host2, host3: 16 MiB" in ended.stdout
    testbed.check_nothing_left()


def test_hpcdl_run_has_a_rank_on_each_host_and_says_that_they_are_emulated(library):
    name, testbed = library
    (testbed.folder / "tiny.toml").write_text(text_of(COLLECTIVE))
    ended = testbed("hpcdl", "run", "tiny.toml", "-o", "o", hosts=4, slow=["host4:100mbit"])
    assert ended.returncode == 0, ended.stderr
    run = hpcdl.read(testbed.folder / "o")
    assert run.cases["nodes"].tolist() == [4, 4]
    assert run.cases["correct"].all()
    environment = run.environment
    assert environment["mpi"]["library"] == name
    assert sorted(rank["hostname"] for rank in environment["ranks"]) == ["host1", "host2", "host3", "host4"]
    rates = {**dict.fromkeys(("host1", "host2", "host3"), 25_000_000), "host4": 12_500_000}
    slow = {"slow": {"host4": "100mbit"}, "bytes_per_second": rates}
    usual = {"trunk": "", "trunk_bytes_per_second": 0, "latency": 0.0, "relayed": False, "slow_cpu": {}}
    assert environment["emulated"] == {"hosts": 4, "rate": "200mbit", **slow, **usual}
    # what each link carried: none of the messages had another way
    counters = environment["link_counters"]
    assert set(counters) == {"host1", "host2", "host3", "host4"}
    assert min(devices["eth0"]["tx_bytes"] for devices in counters.values()) > 14 * 1.5 * 40000
    page = (testbed.folder / "o/report.md").read_text()
    assert "The nodes are 4 hosts of hpcdl testbed, with links limited to" in page
    assert "limited to 200 Mbit/s, host4 to 100 Mbit/s" in page
    testbed.check_nothing_left()


NODES = """
[suite]
name = "nodes"
question = "Which host is slow?"

[[case]]
kind = "node"
work = ["matrix_product", "triad"]
ranks = "all"
repetitions = 6
confirm = 2
"""


def test_a_host_with_less_cpu_time_is_named_as_slow(testbed):
    """Its processes may use 0.4 cores; others work while it sleeps, so that the limit alone slows it."""
    if cpu_controller() is None:
        pytest.skip("no cpu controller of control groups")
    (testbed.folder / "nodes.toml").write_text(NODES)
    ended = testbed("hpcdl", "run", "nodes.toml", "-o", "o", hosts=3, slow_cpu=["host2:0.4"])
    assert ended.returncode == 0, ended.stderr
    assert re.search(r"host2 computes at [2-7]\d\.\d % \(.*\) of the other hosts'\s+speed", ended.stdout)
    assert "processes of host2 to 0.4 cores" in (testbed.folder / "o/report.md").read_text()
    testbed.check_nothing_left()
    assert not list(cpu_controller().glob("hpcdl-testbed-*"))


@pytest.mark.parametrize("library", ["MPICH", pytest.param("Open MPI", marks=pytest.mark.grid)], indirect=True)
def test_cases_for_ranks_of_one_host_are_left_out_and_the_others_run(library):
    """And resuming in the same place says the same."""
    _, testbed = library
    suite = testbed.folder / "tiny.toml"
    suite.write_text(text_of({**COLLECTIVE, "aggregation": ["ring", "two_shot"]}))
    for resume in ([], ["--resume"]):
        ended = testbed("hpcdl", "run", suite, "-o", "o", *resume, hosts=2)
        assert ended.returncode == 1, ended.stderr
        line = "collective-allreduce-two_shot-p4-40000B: not run: its aggregation needs all ranks on one host"
        assert line in ended.stdout
        assert "FAILED" not in ended.stdout
        run = hpcdl.read(testbed.folder / "o")
        assert run.cases["aggregation"].tolist() == ["ring"]
        assert not run.complete
        assert "NOT RUN collective-allreduce-two_shot-p4-40000B: " in (testbed.folder / "o/report.md").read_text()
    testbed.check_nothing_left()


SERVER = {**CASES["train"], "training": "asynchronous", "ranks": 3, "global_batch": 48, "timeout_seconds": 60}


def test_a_server_receives_from_workers_on_other_hosts(library):
    """MPICH 5.0 loses receives from any rank that are posted before their messages arrive from other hosts."""
    _, testbed = library
    (testbed.folder / "server.toml").write_text(text_of(SERVER))
    ended = testbed("hpcdl", "run", testbed.folder / "server.toml", "-o", "o", hosts=3)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    testbed.check_nothing_left()
