"""A run whose machine is a model network, so that what is predicted and what was measured can be told apart."""

import json

import pytest
from contract.measured import SUITE, measure

from hpcdl.fabric.network import Link, Network
from hpcdl.report.render import render

MACHINE = Network("machine", Link(3e-5, 1e-9), source="none", gamma=2e-9)


def measured(hand, schemes='["ring", "tree", "butterfly", "native"]'):
    return measure(hand, MACHINE, SUITE.format(schemes, [4096, 65536, 1048576]))


def test_each_time_stands_beside_its_prediction(hand, row, whole):
    page = whole(measured(hand))
    part = page[page.index("## Predicted and measured") : page.index("## Job")]
    assert row(part, "alpha")[1] == "30.0 us"
    assert row(part, "beta")[1] == "1.00 GB/s"
    assert row(part, "gamma")[1] == "500 MB/s"
    ring = 2 * 3 * 3e-5 + 2 * 3 / 4 * 1048576 * 1e-9 + 3 / 4 * 1048576 * 2e-9
    assert row(part, "1 MiB", "ring", "4")[3:] == [f"{1e3 * ring:.2f} ms"] * 2 + ["+0.0 %"]
    assert row(part, "tree", "2")[2:] == ["1.00", "1.00", "1.00", "3"]
    assert "native" not in part
    assert "Half of the 18 predicted times are within 0.0 % of the measured ones" in part


def test_json_has_the_network_and_its_predictions(hand):
    whole = json.loads(render([measured(hand)], "json"))
    (network,) = whole["networks"]
    assert network["run"] == hand.folder.name
    assert network["alpha_seconds"] == pytest.approx(3e-5, rel=1e-3)
    assert network["fit"]["fitted"]["of"] == 18
    for case in whole["cases"]:
        if case["aggregation"] == "native":
            assert case["predicted_seconds"] is None
        else:
            assert case["predicted_seconds"] == pytest.approx(case["time_p50_seconds"], rel=1e-3)


def test_what_takes_long_to_simulate_is_counted(hand, monkeypatch):
    monkeypatch.setattr("hpcdl.prediction.predict.MAX_REPORT_MESSAGES", 5 * (3 * 2 + 3 * 4))
    page = render([measured(hand)], "md")
    assert "Half of the 10 predicted times" in page
    assert "- 8 measured times more would take long to simulate; hpcdl predict does it." in page


def test_too_few_times_are_passed_over(hand):
    """Three costs and six times: they would fit whatever they were."""
    run = measured(hand, '"ring"')
    assert "Predicted and measured" not in render([run], "md")
    assert json.loads(render([run], "json"))["networks"] == []
