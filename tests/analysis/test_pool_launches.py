"""Launches of one suite are pooled: medians of launches' medians, and intervals that speak of launches."""

import numpy as np
import pytest

from hpcdl.analysis.run.launches import launches
from hpcdl.analysis.run.points import pool
from hpcdl.analysis.run.scaling import records

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
        run = type(hand)(folder)
        for scheme, factor in (("ring", 1.0), ("native", 2.0)):
            run.case(
                [[900.0, *(factor * ms for ms in times)]] * 2, **{**CASE, "aggregation": scheme}, correct=True
            )
        return run.read(environment or {"key": "k"}, suite_text)

    return launch


def test_the_launch_is_the_unit(launched):
    middles = [10.0, 30.0, 12.0, 11.0, 14.0, 50.0, 13.0]
    runs = [launched(n, [ms - 1, ms, ms + 1] * 3) for n, ms in enumerate(middles)]
    ring, native = records(launches(pool(runs)))
    assert (ring["launches"], native["launches"]) == (7, 7)
    assert ring["time_p50_seconds"] == pytest.approx(np.median(middles) * 1e-3)
    assert native["time_p50_seconds"] == pytest.approx(2 * np.median(middles) * 1e-3)
    assert ring["time_p50_low_seconds"] == pytest.approx(10e-3)  # of 7 medians the least and the most cover 95 %
    assert ring["time_p50_high_seconds"] == pytest.approx(50e-3)
    assert ring["measured_steps"] == 7 * 9
    assert ring["correct"] is True


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
        ({"environment": {"key": "x"}}, "the machines or libraries differ"),
    ],
)
def test_what_is_no_repetition_is_refused(launched, other, said):
    runs = [launched(0, [1.0] * 6), launched(1, [1.0] * 6, **other)]
    with pytest.raises(ValueError, match=f"/1 is no launch of what .*/0 is: {said}"):
        pool(runs)
