"""A run whose machine is a model network, so that what is predicted and what was measured can be told apart."""

import json

import pytest
from conftest import TRAINING
from contract.measured import SUITE, measure

from hpcdl.fabric.network import Link, Network
from hpcdl.report.render import end, render
from hpcdl.report.run.findings import NOTHING_STATED, Reference, with_predictions
from hpcdl.trace.schema import PREDICTIONS, packed, read

MACHINE = Network("machine", Link(3e-5, 1e-9), source="none", gamma=2e-9)


def measured(hand, schemes='["ring", "tree", "butterfly", "native"]'):
    return measure(hand, MACHINE, SUITE.format(schemes, [4096, 65536, 1048576]))


def test_each_time_stands_beside_its_prediction(hand, row, whole):
    page = whole(with_predictions(measured(hand)))
    part = page[page.index("## Predicted and measured") : page.index("## Job")]
    assert row(part, "alpha")[1] == "30.0 us"
    assert row(part, "beta")[1] == "1.00 GB/s"
    assert row(part, "gamma")[1] == "500 MB/s"
    ring = 2 * 3 * 3e-5 + 2 * 3 / 4 * 1048576 * 1e-9 + 3 / 4 * 1048576 * 2e-9
    cells = row(part, "1 MiB", "ring", "4")
    assert [cells["predicted"], cells["measured"], cells["error"]] == [f"{1e3 * ring:.2f} ms"] * 2 + ["+0.0 %"]
    assert "\nThe same in all 6 rows: median +0.0 %, lowest +0.0 %, highest +0.0 %, times 3.\n" in part
    assert "native" not in part and "Flags:" not in part
    assert "Half of the 18 predicted times are within 0.0 % of the measured ones, and within 0.0 % if each" in part


@pytest.mark.parametrize(
    ("fabric", "traced", "says"),
    [
        (1.2, 1.0, "takes 20.0 % longer through hpcdl than with mpi4py alone (64 B), and a step does not take measurably longer with tracing."),
        (1.0, 1.1, "does not take measurably longer through hpcdl than with mpi4py alone (64 B), and a step takes 10.0 % longer with tracing."),
    ],
)  # fmt: skip
def test_costs_of_an_exchange_and_of_tracing_are_one_sentence(hand, whole, fabric, traced, says):
    hand.launches = 2
    for name, factor in (("raw", 1.0), ("fabric", fabric)):
        hand.case([[0.01 * factor] * 30] * 2, kind="pairwise", aggregation=name, message_bytes=64)
    fields = {**TRAINING, "aggregation": "ring", "settings": {"trace": "alternating"}}
    for seed in range(6):
        hand.case([[traced, 1.0] * 10] * 2, **{**fields, "seed": seed})
    assert f"\nAn exchange {says}\n" in whole(hand.read({}, '[suite]\nanswer = "costs"'))


def test_json_has_the_network_and_its_predictions(hand):
    whole = json.loads(render([measured(hand)], "json", Reference(predict=True)))
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
    page = render([measured(hand)], "md", Reference(predict=True))
    assert "Half of the 10 predicted times" in page
    assert "- 8 measured times more would take long to simulate; hpcdl predict does it." in page


def test_too_few_times_are_passed_over(hand):
    """Three costs and six times: they would fit whatever they were."""
    run = measured(hand, '"ring"')
    assert "Predicted and measured" not in render([run], "md", Reference(predict=True))
    assert json.loads(render([run], "json", Reference(predict=True)))["networks"] == []


def test_predictions_are_made_when_a_run_ends_and_kept_in_every_form(hand, tmp_path, monkeypatch):
    """Folder, pooled launches and records show the same page; a run that keeps none, or those of other cases, shows none."""
    hand.launches = 2
    run = measured(hand)
    page = whole_page(run, Reference(predict=True))
    assert "Predicted and measured" in page
    assert "Predicted and measured" not in whole_page(run)
    end(hand.folder, run, predict=True)
    monkeypatch.setattr("hpcdl.report.run.findings.predict_run", None)
    kept = read(hand.folder)
    assert whole_page(kept) == page
    (tmp_path / "kept.json.xz").write_bytes(packed(kept))
    records = read(tmp_path / "kept.json.xz")
    assert predicted(records) == predicted(read(hand.folder / "run.h5")) == predicted(kept) != []
    assert predicted(kept.only(range(len(kept.recorded) - 1))) == []
    (hand.folder / PREDICTIONS).write_text("{")
    assert predicted(read(hand.folder)) == []


def whole_page(run, reference=NOTHING_STATED):
    return render([run], "html", reference)


def predicted(run):
    """Return the predicted seconds of all cases that have any."""
    cases = json.loads(render([run], "json"))["cases"]
    return [case["predicted_seconds"] for case in cases if case["predicted_seconds"]]
