"""Claims are decided by intervals, and their cases exist."""

import tomllib
from pathlib import Path

import pytest

from hpcdl import suite
from hpcdl.cli import main
from hpcdl.report.published_results import FAILS, HOLDS, OPEN, Claim, claims, decide

ROOT = Path(__file__).parents[2]


def record(name, value, low=None, high=None, **fields):
    return {
        "aggregation": name,
        "step_seconds": value,
        "step_seconds_low": low,
        "step_seconds_high": high,
        **fields,
    }


def claim(**fields):
    return Claim(text="t", source="s", run="r", field="step_seconds", case={"aggregation": "ring"}, **fields)


@pytest.mark.parametrize(
    ("ring", "tree", "verdict"),
    [
        ((1.0, 0.9, 1.1), (3.0, 2.9, 3.1), HOLDS),
        ((1.0, 0.9, 1.1), (2.0, 1.9, 2.1), OPEN),
        ((4.0, 3, 5), (2.0, 2, 2), FAILS),
    ],
)
def test_a_ratio_is_decided_by_its_whole_interval(ring, tree, verdict):
    decision = decide(claim(by={"aggregation": "tree"}, below=0.5), [record("ring", *ring), record("tree", *tree)])
    assert decision.value[1:] == (ring[1] / tree[2], ring[2] / tree[1])
    assert decision.verdict == verdict
    assert decision.is_surprising == (verdict == FAILS)


def test_seeds_span_a_range_and_failed_cases_do_not_count():
    records = [record("ring", value, seed=value) for value in (1.0, 2.0, 4.0)]
    records += [record("ring", 100.0, error="it failed")]
    assert decide(claim(below=5), records).value == (2.0, 1.0, 4.0)
    assert decide(claim(below=3), records).verdict == OPEN


def test_the_accuracy_of_one_seed_decides_nothing():
    one = Claim(text="t", source="s", run="r", field="final_accuracy", case={}, above=0.5)
    assert decide(one, [{"final_accuracy": 0.9}]).verdict == OPEN
    assert decide(one, [{"final_accuracy": 0.9}, {"final_accuracy": 0.8}]).verdict == HOLDS


@pytest.mark.slow
def test_every_claim_has_its_cases_in_a_shipped_suite():
    reports = tomllib.loads((ROOT / "reports/reports.toml").read_text())["report"]
    assert len(claims()) >= 20
    for known in claims():
        assert known.run in {report["name"] for report in reports}
        fields = [case.fields() for case in suite.load(ROOT / "suites" / f"{known.run}.toml", check=False).cases]
        for case in filter(None, (known.case, known.by, known.minus)):
            assert any(all(str(row.get(key)) == str(case[key]) for key in case) for row in fields), (
                known.text,
                case,
            )


def test_a_run_that_contradicts_a_claim_fails_the_command(hand, tmp_path, capsys):
    """Written by hand: a tree that is slower than a server."""
    network = {"network": "gemini", "settings": {"network": "gemini"}, "warmup_steps": 0}
    for scheme, ms in (("parameter_server", 10.0), ("binomial", 100.0)):
        whole = {"kind": "collective", "collective": "allreduce", "dtype": "float32", "message_bytes": 30380704}
        hand.case([[ms] * 3], aggregation=scheme, correct=True, ranks=128, **whole, **network)
    hand.read()
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "firecaffe-cluster").symlink_to(hand.folder)
    assert main(["claims", str(tmp_path / "runs")]) == 1
    assert "OTHERWISE THAN BEFORE: A reduction tree sums" in " ".join(capsys.readouterr().out.split())
    assert main(["claims", str(tmp_path)]) == 3
