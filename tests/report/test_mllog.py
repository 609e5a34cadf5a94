"""MLPerf's own parser reads the log lines."""

import json

import pytest

from hpcdl.report.run.render import render

parser = pytest.importorskip("mlperf_logging.compliance_checker.mlp_parser.ruleset_600")


def test_the_lines_of_a_training_are_parsed(hand, tmp_path):
    evaluations = [(5, 1.0, 0.25, 0.5, 0.8, 320), (10, 2.0, 0.5, 0.3, 0.9, 640)]
    hand.train([[20.0] * 10] * 2, evaluations=evaluations, target_accuracy=0.85, seed=3, global_batch=64)
    hand.train([[20.0] * 10] * 2, kind="replay")
    file = tmp_path / "run.mllog"
    file.write_text(render([hand.read({"date": "2026-01-02T03:04:05+00:00"})], "mllog"))
    lines, failed = parser.parse_file(str(file))
    assert not failed
    values = {}
    for line in lines:
        values.setdefault(line.key, []).append((line.timestamp, line.value["value"]))
    begin = 1767323045000
    assert values["run_start"] == [(begin, None)]
    assert values["eval_accuracy"] == [(begin + 250, 0.8), (begin + 500, 0.9)]
    assert values["run_stop"] == [(begin + 500, None)]
    assert [values[key][0][1] for key in ("seed", "global_batch_size")] == [3, 64]
    stop = json.loads(file.read_text().splitlines()[-1].removeprefix(":::MLLOG "))
    assert stop["metadata"]["status"] == "success"
