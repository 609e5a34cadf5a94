"""Findings on synthetic trees of /proc and /sys: a doubtful one has one line of advice."""

import pytest

from hpcdl.launch import preflight


def place(root, path, text):
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)
    return root


CPU = "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"
CLOCK = "sys/devices/system/clocksource/clocksource0/current_clocksource"
PORT = "sys/class/infiniband/mlx5_0/ports/1/state"


@pytest.mark.parametrize(
    ("check", "path", "good", "bad"),
    [
        (preflight.governor, CPU, "performance\n", "powersave\n"),
        (preflight.clock_source, CLOCK, "tsc\n", "hpet\n"),
        (preflight.cores, "sys/fs/cgroup/cpu.max", "max 100000\n", "50000 100000\n"),
    ],
)
def test_a_warning_has_advice(tmp_path, monkeypatch, check, path, good, bad):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    fine, doubtful = check(place(tmp_path, path, good)), check(place(tmp_path, path, bad))
    assert (fine.verdict, fine.advice) == ("ok", "")
    assert doubtful.verdict == "warning"
    assert doubtful.advice


def test_tcp_beside_infiniband_is_a_warning(tmp_path):
    assert preflight.network(tmp_path, {"UCX_TLS": "tcp"}).verdict == "ok"
    place(tmp_path, PORT, "4: ACTIVE\n")
    assert preflight.network(tmp_path, {"UCX_TLS": "rc,sm"}).verdict == "ok"
    found = preflight.network(tmp_path, {"UCX_TLS": "tcp,self"})
    assert (found.verdict, found.advice) == ("warning", "unset UCX_TLS")
