"""Launches of one suite are pooled: medians of launches' medians, and intervals that speak of launches."""

import numpy as np
import pytest

from hpcdl.analysis.run.launches import launches
from hpcdl.analysis.run.pooling import pool
from hpcdl.analysis.run.scaling import records
from hpcdl.report.run.warnings import warnings

CASE = {
    "kind": "collective",
    "collective": "allreduce",
    "aggregation": "ring",
    "message_bytes": 64,
    "warmup_steps": 1,
}


@pytest.fixture
def launched(hand, tmp_path):
    def launch(number, times, environment=None, suite_text="s"):
        folder = tmp_path / str(number)
        folder.mkdir()
        run, environment = type(hand)(folder), environment or {"key": "k"}
        for scheme, factor in (("ring", 1.0), ("native", 2.0)):
            fields = {**CASE, "aggregation": scheme, "environment_key": environment["key"]}
            run.case([[900.0, *(factor * ms for ms in times)]] * 2, **fields, correct=True)
        return run.read(environment, suite_text)

    return launch


def test_the_launch_is_the_unit(launched):
    middles = [10.0, 30.0, 12.0, 11.0, 14.0, 50.0, 13.0]
    runs = [launched(n, [ms - 1, ms, ms + 1] * 3) for n, ms in enumerate(middles)]
    ring, native = records(launches(pool(runs)))
    assert (ring.launches, native.launches) == (7, 7)
    assert ring.time_p50_seconds == pytest.approx(np.median(middles) * 1e-3)
    assert native.time_p50_seconds == pytest.approx(2 * np.median(middles) * 1e-3)
    assert ring.time_p50_low_seconds == pytest.approx(10e-3)  # of 7 medians the least and the most cover 95 %
    assert ring.time_p50_high_seconds == pytest.approx(50e-3)
    assert ring.measured_steps == 7 * 9
    assert ring.correct is True


def test_each_launch_s_events_and_cases_stay_its_own(launched):
    runs = [launched(n, [1.0 + n] * 6) for n in range(3)]
    pooled = pool(runs)
    assert pooled.cases["launch"].tolist() == [1, 1, 2, 2, 3, 3]
    assert sorted(set(pooled.steps["case_index"])) == list(range(6))
    lengths = pooled.steps.groupby("case_index").apply(lambda rows: (rows["end"] - rows["begin"]).median())
    assert lengths.tolist() == [1e6, 2e6, 2e6, 4e6, 3e6, 6e6]
    for index in range(6):
        assert set(pooled.events_of(index)["case_index"]) <= {index}


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"suite_text": "t"}, "the suites differ"),
        ({"environment": {"key": "k2", "machine_key": "x"}}, "the machines or libraries differ"),
    ],
)
def test_what_is_no_repetition_is_refused(launched, other, said):
    runs = [launched(0, [1.0] * 6), launched(1, [1.0] * 6, **other)]
    with pytest.raises(ValueError, match=f"/1 is no launch of what .*/0 is: {said}"):
        pool(runs)


def test_launches_on_other_nodes_are_pooled_and_keep_their_hosts(launched):
    """Jobs of a study: one node, two nodes, and two others."""
    jobs = [("k1", ["a"]), ("k2", ["a", "b"]), ("k2", ["c", "d"])]
    runs = [
        launched(
            n, [1.0] * 6, {"key": key, "machine_key": "m", "ranks": [{"hostname": host} for host in 2 * hosts]}
        )
        for n, (key, hosts) in enumerate(jobs)
    ]
    pooled = pool(runs)
    assert [pooled.hosts_of(index) for index in (0, 2, 4)] == [["a", "a"], ["a", "b"], ["c", "d"]]
    assert not any("environments" in line for line in warnings(pooled, records(launches(pooled))))
