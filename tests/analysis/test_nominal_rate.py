"""Absolute floor by the link's nominal rate."""

from dataclasses import replace

import numpy as np
import pytest
from contract.archives import case, run

from hpcdl.analysis.over_time.history import histories
from hpcdl.analysis.over_time.verdict import SuiteVerdict, below_floor, nominal_rate
from hpcdl.report.history.history import page

CARD = {"driver": "mlx5_core", "rate": "25000 Mbit/s", "state": "up"}
PORT = {"driver": "mlx5_core", "rate": "200 Gb/sec (4X HDR)", "state": "4: ACTIVE"}


@pytest.mark.parametrize(
    ("environment", "rate"),
    [
        ({"network": {"eth0": CARD}}, 25e9 / 8),
        ({"network": {"eth0": CARD}, "infiniband": {"mlx5_0/1": PORT}}, 200e9 / 8),
        ({"network": {"eth0": CARD}, "infiniband": {"mlx5_0/1": PORT | {"state": "1: DOWN"}}}, 25e9 / 8),
        (
            {
                "network": {"v": CARD | {"driver": "veth"}, "e": CARD | {"rate": "unknown"}},
                "infiniband": "unknown",
            },
            None,
        ),
        ({"emulated": {"bytes_per_second": {"a": 10, "b": 25}}, "network": {"eth0": CARD}}, 25),
        ({}, None),
    ],
)
def test_the_nominal_rate_is_that_of_the_fastest_link_that_is_up(environment, rate):
    assert nominal_rate(environment) == rate


def archive(shares, nodes=2, size=1 << 24, **environment):
    """Runs in which the best of two algorithms has these shares of 1 GB/s."""
    env = environment or {"network": {"eth0": CARD | {"rate": "8000 Mbit/s"}}}
    runs = []
    for number, share in enumerate(shares):
        seconds = 1.5 * size / (share * 1e9)  # 4 ranks: the busiest link carries 2 (p - 1) / p of the size
        cases = [case("ring", seconds), case("tree", 3 * seconds)]
        cases = [replace(one, collective="allreduce", nodes=nodes, message_bytes=size) for one in cases]
        runs.append(run(number, cases, **env))
    (found,) = histories(runs)
    return found


def test_three_runs_below_a_tenth_are_named_once():
    (one,) = below_floor(archive([0.5, 0.09, 0.5, 0.09, 0.08, 0.07, 0.06, 0.05]))
    assert (one.first, one.found) == (3, 5)
    assert (one.rate, one.nominal) == pytest.approx((0.07e9, 1e9))


def test_a_slow_algorithm_beside_a_fast_one_is_no_slow_link():
    assert not below_floor(archive([0.25] * 5))


@pytest.mark.parametrize("options", [{"nodes": 1}, {"size": 1 << 19}, {"network": "unknown"}])
def test_one_host_short_messages_and_unknown_rates_have_no_floor(options):
    assert not below_floor(archive([0.01] * 5, **options))


def test_the_page_names_the_collective_without_a_baseline():
    history = archive([0.05] * 3)
    found = SuiteVerdict(history)
    assert found.verdict == "regressed"
    text = " ".join(page(found, None).sections[0].points)
    assert "REGRESSED: allreduce, 4 ranks: the best algorithm, ring, has a bus bandwidth of 50.0 MB/s" in text
    assert "below 10 % of the link's nominal 1.00 GB/s" in text
    assert np.isfinite(history.seconds).all()
