"""Findings of hpcdl check: a doubtful one has one line of advice, also on another kind of machine than this."""

import subprocess
from types import SimpleNamespace

from hpcdl.launch import preflight
from hpcdl.launch.counters import Sample
from hpcdl.launch.mpi_probe import Probe, Transports, transports
from hpcdl.launch.preflight import Finding
from hpcdl.launch.testbed import TESTBED

CPU = "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"
CLOCK = "sys/devices/system/clocksource/clocksource0/current_clocksource"


def judge(found, *words):
    """Check that a finding is a warning that has the words, with advice; without words, that it is fine."""
    assert (found.verdict, bool(found.advice)) == (("warning", True) if any(words) else ("ok", False))
    assert all(word in f"{found.detail}; {found.advice}" for word in words if word), found


def test_a_warning_has_advice(tmp_path, put, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    for check, path, good, bad in [
        (preflight.governor, CPU, "performance\n", "powersave\n"),
        (preflight.clock_source, CLOCK, "tsc\n", "hpet\n"),
        (preflight.cores, "sys/fs/cgroup/cpu.max", "max 100000\n", "50000 100000\n"),
    ]:
        for text, words in ((good, ""), (bad, ";")):
            put(path, text)
            judge(check(tmp_path), words)


def test_cores_that_others_use_are_a_warning():
    for busy, stolen, words in [(0.0, 0.0, None), (1.4, 0.0, "1.4 cores"), (0.0, 0.3, "0.3")]:
        begin = Sample(0, 0, 0, 0, 0, 0, 5.0)
        end = Sample(10**9, 10**8, 0, round((busy + 0.1) * 1e9), round(stolen * 1e9), 0, 5.0)
        counted = SimpleNamespace(sample=iter([begin, end]).__next__)
        judge(preflight.other_processes(counted, 0), words, words and "flagged as disturbed")


def test_a_slow_or_a_full_disk_is_a_warning(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(preflight.time, "perf_counter", lambda: now[0])
    for seconds, free, words in [(0.1, 10**12, None), (9, 10**12, "faster"), (0.1, 10, "remove")]:
        monkeypatch.setattr(preflight.os, "fsync", lambda _, took=seconds: now.append(now.pop() + took))
        usage = SimpleNamespace(free=free)
        monkeypatch.setattr(preflight.shutil, "disk_usage", lambda _, usage=usage: usage)
        judge(preflight.disk(tmp_path), words)
        assert not list(tmp_path.iterdir())


def test_a_library_that_takes_no_device_pointers_is_a_warning(monkeypatch):
    answers = {"True\n": None, "False\n": "through the host", "None\n": "does not name it", "": "CUDA"}
    for answer, words in answers.items():
        done = subprocess.CompletedProcess((), 0, answer, "")
        monkeypatch.setattr("subprocess.run", lambda *_, done=done, **__: done)
        judge(preflight.cuda_awareness(), words)


def test_tasks_of_slurm_fit_on_the_cores():
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_CPUS_PER_TASK": "4"}
    for available, words in [(4, None), (1, "srun --cpus-per-task=$SLURM_CPUS_PER_TASK")]:
        judge(*preflight.slurm_tasks(step, available), words)


UCX = """\
[1.4] [n1:5:0] ucp_context.c:2463 UCX  INFO  Version 1.20.1 (loaded from /x/libucp.so.0)
[1.4] [n1:5:0]      ucp_worker.c:1912 UCX  INFO    ucp_context_0 self cfg#0 tag(self/memory tcp/eth0)  rma(self/memory)
[1.5] [n1:5:0]      ucp_worker.c:1912 UCX  INFO    ucp_context_0 intra-node cfg#1 tag(sysv/memory cma/memory)  am(x/y)
"""

INTER = "[1.5] [n1:5:0]  ucp_worker.c:1912 UCX  INFO    ucp_context_0 inter-node cfg#2 tag({})  rma_am(tcp/eth0)\n"

OPENMPI = """\
Host 0 [n1] ranks 0, 3
 host | 0    1
======|=======
    0 : sm   ucx

Connection summary: (pml)
  on-host:  all connections are sm or self
  off-host: all connections are tcp
"""


def test_transports_are_read_from_what_libraries_print():
    for output, within, between in [
        (UCX, ("sysv", "cma"), ()),
        (UCX + INTER.format("rc_mlx5/mlx5_0:1") * 2, ("sysv", "cma"), ("rc_mlx5",)),
        (INTER.format("tcp/eth0 tcp/eth1"), (), ("tcp",)),
        (OPENMPI, ("sm",), ("tcp",)),
        (OPENMPI.replace("are tcp", "are n/a"), ("sm",), ()),
        ("provider: tcp, score = 4\nlibfabric provider: tcp;ofi_rxm - 192.0.2.0/24\n", (), ("tcp;ofi_rxm",)),
        ("", (), ()),
    ]:
        assert transports(output) == (within, between)


def probe(
    hosts=("a", "b"), used=((), ()), skew=(0, 0), alignment=0, cores=((0,), (1,)), machines=None, threads=(1, 1)
):
    offsets, used, nothing = [(one, 1000) for one in skew], Transports(*map(tuple, used)), [None] * len(hosts)
    machines, cores = list(machines or hosts), [list(one) for one in cores]
    ranks = (list(hosts), machines, cores, list(threads))
    return Probe("MPICH 5", len(hosts), *ranks, used, offsets, alignment, nothing)


def test_tcp_beside_a_faster_fabric_is_a_fallback():
    for names in [["tcp"], ["sockets"], ["tcp;ofi_rxm"]]:
        tcp = probe(used=((), names))
        judge(preflight.between_hosts(tcp, {}, []))
        judge(preflight.between_hosts(tcp, {}, ["mlx5_0/1"]), "TCP fallback", "mlx5_0/1", "hpcdl help batch")
        judge(preflight.between_hosts(tcp, {"UCX_TLS": "tcp"}, ["mlx5_0/1"]), "unset UCX_TLS")
        judge(preflight.between_hosts(probe(used=((), ["rc_mlx5"])), {}, ["mlx5_0/1"]))


def test_the_faster_fabric_is_infiniband_or_a_card_with_such_a_driver(tmp_path, put, driver):
    put("sys/class/net/eth0/operstate", "up")
    assert not preflight.fast_fabric(tmp_path)
    put("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n")
    put("sys/class/infiniband/mlx5_1/ports/1/state", "1: DOWN\n")
    driver("hsn0", "cxi_ss1")
    assert preflight.fast_fabric(tmp_path) == ["mlx5_0/1", "hsn0"]


def test_tcp_within_a_host_is_a_warning_except_on_a_testbed():
    tcp = probe(hosts=("a", "a"), used=(["tcp"], ()))
    judge(preflight.within_host(tcp, {"MPIR_CVAR_NOLOCAL": "1"}), "no shared memory", "unset MPIR_CVAR_NOLOCAL")
    testbed = '{"hosts": 1, "rate": "1mbit", "slow": {}, "bytes_per_second": {}}'
    judge(preflight.within_host(tcp, {TESTBED: testbed}))
    judge(preflight.within_host(probe(hosts=("a", "a"), used=(["sysv", "cma"], ())), {}))


def test_clocks_that_differ_are_a_warning():
    for skew, alignment, words in [
        ((0, 3_000_000), 20_000, None),
        ((0, 70_000_000, 1000), 20_000, "synchronise b"),
        ((0, -70_000_000, -70_001_000), 20_000, "synchronise a"),
        ((0, 0), 4_000_000, "quiet network"),
    ]:
        hosts = ("a", "b", "c")[: len(skew)]
        judge(preflight.clock_skew(probe(hosts, skew=skew, alignment=alignment)), words)


def test_ranks_that_share_cores_are_a_warning():
    for given, words in [
        ({"cores": ((0,), (0,))}, ()),  # two machines
        ({"cores": ((0,), (0,)), "machines": "mm"}, ("2 ranks with 2 threads on 1 cores", "at most 1 ranks")),
        ({"cores": ((0, 1), (2, 3)), "threads": (4, 2)}, ("1 ranks with 4 threads on 2 cores of a",)),
    ]:
        judge(preflight.oversubscription(probe(**given)), *words)


def test_findings_of_many_hosts_are_one_line_for_each_verdict():
    fine, slow = Finding("ok", "disk", "fast"), Finding("warning", "disk", "slow", "choose")
    shown = preflight.of_hosts({f"n{number}": [slow if number == 2 else fine] for number in range(6)})
    assert shown == [fine._replace(detail="n0, n1, n3 and 2 more: fast"), slow._replace(detail="n2: slow")]
    assert preflight.of_hosts({"n0": [fine]}) == [fine]


def test_a_missing_launcher_fails_with_advice(monkeypatch):
    monkeypatch.setenv("PATH", "/absent")
    monkeypatch.setattr("sysconfig.get_path", lambda _: "/absent")
    found = next(preflight.preflight())
    assert found.verdict == "FAILED"
    assert found.advice == "pip install 'hpcdl[mpich]', or load your site's MPI module"
